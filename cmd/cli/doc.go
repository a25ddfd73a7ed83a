// Package cli is the command line: it parses flags, calls the engine and hands
// the answer to package view. It decides nothing about sandboxes.
//
// Exit codes: 0 done; 1 error; 2 with -detailed-exitcode when there are
// changes; 130 interrupted; exec returns the command's own.
package cli
