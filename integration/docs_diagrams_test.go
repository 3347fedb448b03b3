package integration

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The lines of a sequence diagram that the pages use. In a text, Mermaid takes ; as the end of the
// line and # as the beginning of an entity.
var (
	diagramParticipant = regexp.MustCompile(`^participant (\w+)(?: as [^;#]+)?$`)
	diagramMessage     = regexp.MustCompile(`^(\w+)(?:->>|-->>|-x|--x)(\w+): [^;#]+$`)
	diagramNote        = regexp.MustCompile(`^Note over (\w+)(?:,(\w+))?: [^;#]+$`)
	diagramBlock       = regexp.MustCompile(`^(alt|opt|loop) [^;#]+$`)
	diagramElse        = regexp.MustCompile(`^else [^;#]+$`)
)

// checkDiagram returns the first line of a diagram that Mermaid may not draw, and why.
func checkDiagram(text string) error {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if lines[0] != "sequenceDiagram" {
		return fmt.Errorf("%q: only sequenceDiagram is checked", lines[0])
	}
	var declared, used, open []string
	for _, line := range lines[1:] {
		line = strings.TrimSpace(line)
		var names []string
		if found := diagramParticipant.FindStringSubmatch(line); found != nil {
			if slices.Contains(declared, found[1]) {
				return fmt.Errorf("%q: declared twice", line)
			}
			declared = append(declared, found[1])
		} else if found := diagramMessage.FindStringSubmatch(line); found != nil {
			names = found[1:]
		} else if found := diagramNote.FindStringSubmatch(line); found != nil {
			names = found[1:]
		} else if found := diagramBlock.FindStringSubmatch(line); found != nil {
			open = append(open, found[1])
		} else if diagramElse.MatchString(line) && len(open) > 0 && open[len(open)-1] == "alt" {
			continue
		} else if line == "end" && len(open) > 0 {
			open = open[:len(open)-1]
		} else {
			return fmt.Errorf("%q: no participant, message, note or block", line)
		}
		for _, name := range names {
			if name != "" && !slices.Contains(declared, name) {
				return fmt.Errorf("%q: %s is not declared", line, name)
			}
			used = append(used, name)
		}
	}
	for _, name := range declared {
		if !slices.Contains(used, name) {
			return fmt.Errorf("%s is declared and not used", name)
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("%s has no end", open[len(open)-1])
	}
	return nil
}

func TestDiagramSyntax(t *testing.T) {
	t.Parallel()
	const begin = "sequenceDiagram\nparticipant A\nparticipant B as the service\nA->>B: POST, key: k\n"
	for _, test := range []struct{ diagram, want string }{
		{begin, ""},
		{begin + "B--xA: lost\nNote over A,B: wait\nalt kept\nB-->>A: 201\nelse held\nA-xB: 409\nend", ""},
		{"flowchart LR\nA --> B", "only sequenceDiagram"},
		{begin + "A->>C: POST", "C is not declared"},
		{begin + "Note over C: wait", "C is not declared"},
		{begin + "participant C", "C is declared and not used"},
		{begin + "participant A", "declared twice"},
		{begin + "A=>B: POST", "no participant, message"},
		{begin + "A->>B: POST; 201", "no participant, message"},
		{begin + "A->>B: run #1", "no participant, message"},
		{begin + "A->>B", "no participant, message"},
		{begin + "else held", "no participant, message"},
		{begin + "alt kept\nA->>B: POST", "alt has no end"},
		{begin + "end", "no participant, message"},
	} {
		err := checkDiagram(test.diagram)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %q", test.diagram, err, test.want)
		}
	}
}

// GitHub draws each diagram of the pages.
func TestDiagramsOfThePages(t *testing.T) {
	t.Parallel()
	for _, b := range docBlocks(t) {
		if b.language != "mermaid" {
			continue
		}
		if err := checkDiagram(b.text); err != nil {
			t.Errorf("%s:%d: %v", b.page, b.line, err)
		}
	}
}

// Behaviour shows what can happen to a request, each case below its name.
func TestDiagramsOfBehaviour(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/behaviour.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"First request", "Replay", "Waiting duplicate", "Reused key", "Failure released",
		"Service cut off", "Proxy killed", "Store unavailable", "Stream",
	} {
		if !strings.Contains(string(text), "\n### "+name+"\n\n```mermaid\nsequenceDiagram\n") {
			t.Errorf("docs/behaviour.md has no diagram %q", name)
		}
	}
}

func TestFencesOfThePagesAreClosed(t *testing.T) {
	t.Parallel()
	for _, page := range docPages(t) {
		if strings.Count("\n"+page.text, "\n```")%2 != 0 {
			t.Errorf("%s has a fence that is not closed", page.path)
		}
	}
}
