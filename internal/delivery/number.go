package delivery

import (
	"strconv"
	"strings"
)

// maxZeros is how many zeros a number is written out with; beyond that it gets
// an exponent.
const maxZeros = 64

// maxExponent bounds what is taken for a number at all.
const maxExponent = 1_000_000_000

// exactNumber returns one form for each value that a JSON number may have,
// however it is written: 1, 1.0 and 1e0 are "1". No digit is lost, as it would
// be in a double. There is none for an exponent beyond maxExponent.
func exactNumber(number string) (form string, ok bool) {
	mantissa, exponentText, hasExponent := strings.Cut(strings.ToLower(number), "e")
	exponent := int64(0)
	if hasExponent {
		var err error
		if exponent, err = strconv.ParseInt(exponentText, 10, 64); err != nil {
			return "", false
		}
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exponent -= int64(len(fraction))
	digits := strings.TrimLeft(whole+fraction, "0")
	significant := strings.TrimRight(digits, "0")
	exponent += int64(len(digits) - len(significant))
	switch {
	case significant == "":
		return "0", true
	case exponent < -maxExponent || exponent > maxExponent:
		return "", false
	}
	sign := ""
	if negative {
		sign = "-"
	}
	point := int64(len(significant)) + exponent // the point's place among the digits
	switch {
	case exponent < -maxZeros || exponent > maxZeros:
		return sign + significant + "e" + strconv.FormatInt(exponent, 10), true
	case exponent >= 0:
		return sign + significant + strings.Repeat("0", int(exponent)), true
	case point > 0:
		return sign + significant[:point] + "." + significant[point:], true
	default:
		return sign + "0." + strings.Repeat("0", int(-point)) + significant, true
	}
}
