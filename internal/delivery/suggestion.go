package delivery

import (
	"fmt"
	"strings"
)

// NearNames returns the names in the catalogue that a user who wrote this name most likely
// meant, sorted.
func NearNames(name string) []string {
	names := make([]string, len(catalogue))
	for i, p := range catalogue {
		names[i] = p.Name
	}
	return Nearest(name, names)
}

// UnknownProvider returns the error for a name that is not in the catalogue. It suggests
// similar names.
func UnknownProvider(name string) error {
	const all = "`caddy-dedup providers` lists them all, and `key header <field>` serves any other sender"
	if near := NearNames(name); len(near) > 0 {
		return fmt.Errorf("%q is not a provider; did you mean %s? %s", name, Alternatives(near), all)
	}
	return fmt.Errorf("%q is not a provider; %s", name, all)
}

// Alternatives lists the accepted words in an error message, as "a, b or c".
func Alternatives(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// Nearest returns those of the right names that a user who wrote this name most likely meant,
// in their order.
func Nearest(name string, right []string) []string {
	name = strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(name))
	var near []string
	nearest := 2 // a name that differs in more than 2 bytes is not near
	for _, other := range right {
		distance := editDistance(name, other)
		if len(name) >= 3 && strings.HasPrefix(other, name) || strings.HasPrefix(name, other) {
			distance = min(distance, 1)
		}
		switch {
		case distance > nearest || distance > len(other)/3:
		case distance < nearest:
			near, nearest = []string{other}, distance
		default:
			near = append(near, other)
		}
	}
	return near
}

// editDistance is how many bytes must be inserted, deleted or replaced to turn one
// text into the other (the Levenshtein distance).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
