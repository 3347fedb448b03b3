package report

import (
	"fmt"
	"os"
	"strings"
)

// A page has each part of a result between two comments, which name it:
//
//	<!-- bench:requests -->
//	...
//	<!-- /bench -->
//
// A name may be followed by rows and columns of its table, which then has only these, and only
// medians:
//
//	<!-- bench:requests first/file first/redis by-cpu -->
const (
	markBegin = "<!-- bench:"
	markEnd   = "<!-- /bench -->"
)

// WritePage brings a page up to date: each part that it has a place for and that was
// measured. What was not measured stays as it was.
func (r *Result) WritePage(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := fill(string(page), r.part)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// part returns the text for a place of a page, empty for a table that was not measured.
func (r *Result) part(place string) (string, error) {
	name, only, _ := strings.Cut(place, " ")
	if name == "run" {
		return r.about(), nil
	}
	for _, g := range r.Groups {
		if g.Name == name {
			var err error
			if only != "" {
				g, err = g.only(strings.Fields(only))
			}
			// Measured together, shown together: each table says of which run it is.
			return g.Markdown() + "\n" + r.origin() + "\n", err
		}
	}
	return "", nil
}

func (r *Result) origin() string {
	text := fmt.Sprintf("Commit %s, %s.", r.Commit, r.Date.UTC().Format("2006-01-02"))
	if r.Short {
		text += " **A short run: it shows that the cases work, and says nothing of speed.**"
	}
	return text
}

// about says where, when and with what the run was.
func (r *Result) about() string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "| %s | %s |\n", name, strings.ReplaceAll(text, "|", `\|`)) }
	b.WriteString("| | |\n|---|---|\n")
	line("machine", fmt.Sprintf("%s, %d cores, %.0f GiB of memory", r.Machine.CPU, r.Machine.Cores, float64(r.Machine.Memory)/(1<<30)))
	line("kernel", r.Machine.Kernel)
	for _, v := range r.Versions {
		line(v.Name, v.Text)
	}
	line("commit", r.Commit)
	line("date", r.Date.UTC().Format("2006-01-02 15:04 UTC"))
	line("command", "`"+strings.Join(append([]string{"go -C bench run ."}, r.Settings...), " ")+"`")
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	if r.Short {
		b.WriteString("\n**A short run: it shows that the cases work, and says nothing of speed.**\n")
	}
	return b.String()
}

// fill puts the parts in their places.
func fill(page string, part func(place string) (string, error)) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(page, markBegin)
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, rest, closed := strings.Cut(rest, " -->\n")
		old, after, ended := strings.Cut(rest, markEnd)
		if !closed || !ended || strings.Contains(old, markBegin) {
			return "", fmt.Errorf("%s%s has no end; it is %s", markBegin, firstLine(name), markEnd)
		}
		text, err := part(name)
		if err != nil {
			return "", err
		}
		if text != "" {
			old = "\n" + text + "\n"
		}
		b.WriteString(markBegin + name + " -->\n" + old + markEnd)
		page = after
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
