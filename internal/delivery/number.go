package delivery

import (
	"strconv"
	"strings"
)

// maxZeros is the maximum number of zeros to write a number without an exponent: a few bytes of
// JSON must not become a huge ID.
const maxZeros = 64

// maxExponent is the maximum exponent of an ID, so that no sum of exponents and lengths overflows.
const maxExponent = 1_000_000_000

// maxNumber is the maximum length of a number, in bytes: its exact form takes several copies, which
// are not reserved.
const maxNumber = 4 << 10

// exactNumber returns the same text for all JSON numbers with the same value: 1, 1.0
// and 1e0 become "1". It keeps all digits; a double would lose some of them. ok is
// false if the exponent is beyond maxExponent, or the number longer than maxNumber.
func exactNumber(number string) (form string, ok bool) {
	if len(number) > maxNumber {
		return "", false
	}
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
