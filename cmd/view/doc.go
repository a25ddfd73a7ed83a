// Package view renders what the engine answers: for people (aligned text,
// colour on a terminal) and for machines (JSON with a format_version). Both are
// views of one and the same value; nothing is decided here.
package view
