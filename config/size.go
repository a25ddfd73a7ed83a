package config

import (
	"fmt"
	"math"
	"math/big"
	"strings"
)

var sizeUnits = map[string]int64{
	"": 1, "B": 1,
	"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50,
}

// ParseSize reads an amount of bytes: "512MiB" (1024 steps), "2GB" (1000
// steps), "1.5GiB", or a plain number of bytes. Negative amounts and units
// that could mean either step ("512M") are refused.
func ParseSize(text string) (int64, error) {
	trimmed := strings.TrimSpace(text)
	end := strings.IndexFunc(trimmed, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end == -1 {
		end = len(trimmed)
	}
	number, unit := trimmed[:end], strings.TrimSpace(trimmed[end:])
	factor, known := sizeUnits[unit]
	if !known && number != "" {
		if first := strings.ToUpper(unit[:1]); strings.Contains("KMGTP", first) {
			return 0, fmt.Errorf("%q is not a size: unit %q is unknown; write %s%siB (steps of 1024) or %s%sB (steps of 1000)", text, unit, number, first, number, first)
		}
	}
	value, ok := new(big.Rat).SetString(number)
	if !known || number == "" || !ok {
		return 0, fmt.Errorf("%q is not a size; write a number of bytes or one with a unit, such as 512MiB or 2GB", text)
	}
	value.Mul(value, new(big.Rat).SetInt64(factor))
	if !value.IsInt() {
		return 0, fmt.Errorf("%q is not a whole number of bytes", text)
	}
	if value.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0 {
		return 0, fmt.Errorf("%q is larger than the largest size, 8 EiB", text)
	}
	return value.Num().Int64(), nil
}
