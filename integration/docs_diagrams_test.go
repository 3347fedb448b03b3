package integration

import (
	"regexp"
	"strings"
	"testing"
)

// diagramLine is a line of a sequence diagram as the pages write it. In a text, Mermaid takes ; as the end of the line
// and # as the beginning of an entity.
var diagramLine = regexp.MustCompile(`^(participant \w+( as [^;#]+)?|(\w+(->>|-->>|-x|--x)\w+|Note over \w+(,\w+)?): [^;#]+|(alt|opt|loop|else) [^;#]+|end)$`)

// GitHub draws each diagram of the pages.
func TestDiagramsOfThePages(t *testing.T) {
	t.Parallel()
	for _, b := range docBlocks(t) {
		if b.language != "mermaid" {
			continue
		}
		lines, found := strings.CutPrefix(b.text, "sequenceDiagram\n")
		if !found {
			t.Errorf("%s:%d: only sequenceDiagram is checked", b.page, b.line)
		}
		open := 0 // blocks
		for line := range strings.Lines(lines) {
			line = strings.TrimSpace(line)
			word, _, _ := strings.Cut(line, " ")
			if !diagramLine.MatchString(line) || open == 0 && (word == "else" || word == "end") {
				t.Errorf("%s:%d: %q is no participant, message, note or block", b.page, b.line, line)
			}
			switch word {
			case "alt", "opt", "loop":
				open++
			case "end":
				open--
			}
		}
		if open != 0 {
			t.Errorf("%s:%d: a block has no end", b.page, b.line)
		}
	}
}
