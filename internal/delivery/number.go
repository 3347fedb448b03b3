package delivery

import (
	"math/big"
	"strconv"
	"strings"
)

// maxNumber is the maximum exponent of a number, and the maximum length of one with an exponent, in bytes: a
// few bytes of JSON must not become a huge ID.
const maxNumber = 1 << 10

// exactNumber returns the same text for all JSON numbers with the same value: 1, 1.0
// and 1e0 become "1". It keeps all digits; a double would lose some of them. ok is
// false for a number beyond maxNumber.
func exactNumber(number string) (form string, ok bool) {
	_, exponent, has := strings.Cut(strings.ToLower(number), "e")
	if !has {
		if strings.Contains(number, ".") {
			number = strings.TrimRight(strings.TrimRight(number, "0"), ".")
		}
		if number == "-0" {
			number = "0"
		}
		return number, true
	}
	if n, err := strconv.Atoi(exponent); err != nil || max(n, -n) > maxNumber || len(number) > maxNumber {
		return "", false
	}
	exact, ok := new(big.Rat).SetString(number)
	if !ok {
		return "", false
	}
	digits, _ := exact.FloatPrec()
	return exact.FloatString(digits), true
}
