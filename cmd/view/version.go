package view

import "io"

// versionDocument is `version -json`.
type versionDocument struct {
	FormatVersion string `json:"format_version"`
	Version       string `json:"version"`
	Go            string `json:"go"`       // of the compiler
	Platform      string `json:"platform"` // operating system and architecture
}

// VersionJSON writes `version -json`.
func VersionJSON(w io.Writer, version, compiler, platform string) error {
	return JSON(w, versionDocument{FormatVersion, version, compiler, platform})
}
