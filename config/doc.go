// Package config is the language: it reads a directory of HCL files, checks all
// of it, and evaluates it to Desired, plain data that says what should exist.
//
// It has no access to the host beyond reading the configuration's own files and
// knows neither state nor runtime. What only exists after apply reaches it as
// Exports; without them it evaluates to unknown values. The same Source,
// Settings and Exports always give the same Desired.
package config
