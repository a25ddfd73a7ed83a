package config

// Diagnostic is one thing wrong with a configuration, as plain data with the
// lines of source it speaks of, so that it can be shown far from the file.
type Diagnostic struct {
	Severity string `json:"severity"` // error or warning
	Summary  string `json:"summary"`
	Detail   string `json:"detail,omitempty"` // what would be right
	Range    *Range `json:"range,omitempty"`
	Snippet  string `json:"snippet,omitempty"` // the source lines of Range, without line numbers
	Context  string `json:"context,omitempty"` // header of the block around Range: sandbox "py"
	Address  string `json:"address,omitempty"` // of the resource concerned, when known
}

// Range is a place in a file; lines and columns count from 1, End is exclusive.
type Range struct {
	File  string `json:"file"` // relative to the configuration's directory
	Start Pos    `json:"start"`
	End   Pos    `json:"end"`
}

// Pos is a position in a file. Columns count characters as a reader sees them.
type Pos struct {
	Line   int `json:"line"`
	Column int `json:"column"`
}

// Diagnostics are all that was found in one run, in file order.
type Diagnostics []Diagnostic

// HasErrors reports whether one of them is an error.
func (d Diagnostics) HasErrors() bool {
	for _, x := range d {
		if x.Severity == "error" {
			return true
		}
	}
	return false
}
