package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// String returns the source as the configuration writes it.
func (s Source) String() string {
	if s.Optional {
		s.Optional = false
		return s.String() + " optional"
	}
	switch s.Kind {
	case KindHeader:
		return s.Kind + " " + s.Header
	case KindJSON:
		return s.Kind + " " + s.Pointer
	case KindForm:
		return s.Kind + " " + s.Field
	case KindValue:
		return s.Kind + " " + s.Text
	case KindParts:
		return "parts " + joined(s.Parts, " + ")
	case KindBatch:
		return "batch " + strings.Join(s.Batch.paths(""), " + ")
	default:
		return s.Kind
	}
}

func joined[T fmt.Stringer](items []T, by string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, by)
}

// paths returns the JSON pointers to what a list reads, with * for each element.
func (l List) paths(base string) []string {
	base += l.Array + "/*"
	var all []string
	for _, pointer := range l.Members {
		all = append(all, base+pointer)
	}
	for _, pointer := range l.Optional {
		all = append(all, base+pointer+" if present")
	}
	for _, inner := range l.Lists {
		all = append(all, inner.paths(base)...)
	}
	return all
}

// String describes the requests that pass.
func (p Pass) String() string {
	where := headerSource(p.Header).String()
	if p.Pointer != "" {
		where = memberSource(p.Pointer).String()
	}
	if p.Empty {
		return where + " is empty"
	}
	if p.Suffix != "" {
		return where + " ends in " + p.Suffix
	}
	if len(p.Values) == 0 {
		return where + " is present"
	}
	return where + " is " + strings.Join(p.Values, " or ")
}

// Key lists the sources of the provider, in the order in which they are tried.
func (p Provider) Key() string {
	return joined(p.Sources, ", or ")
}

// RetentionText returns the retention for the provider as a duration of the configuration, such as
// 7d.
func (p Provider) RetentionText() string {
	const day = 24 * time.Hour
	kept := cmp.Or(p.Retention, DefaultRetention)
	if kept%day == 0 {
		return strconv.Itoa(int(kept/day)) + "d"
	}
	return strconv.Itoa(int(kept/time.Minute)) + "m"
}

// Matcher returns a directive with a matcher for a provider that is identified only by body
// members, which a site's own JSON may have too. It returns "" for other providers.
func (p Provider) Matcher() string {
	if !slices.ContainsFunc(p.Sources, func(s Source) bool { return !s.OfOneSender() }) {
		return ""
	}
	return "dedup /webhooks/" + p.Name + " " + p.Name
}

// Scope returns the header fields that the provider adds to the scope.
func (p Provider) Scope() []string {
	var all []string
	for _, s := range p.Sources {
		for _, field := range s.ScopeHeaders {
			if !slices.Contains(all, field) {
				all = append(all, field)
			}
		}
	}
	return all
}

// Documented reports whether the fact was read in the documentation or the source code of the provider.
// Other facts are from secondary sources or general knowledge.
func (p Provider) Documented() bool { return strings.HasPrefix(p.Fact, "https://") }

// Provenance returns the page or file that documents what identifies a delivery, and when it was
// read, or says that none does.
func (p Provider) Provenance() string {
	switch {
	case !p.Documented():
		return "none: " + p.Fact
	case p.Read == "":
		return p.Fact
	}
	return p.Fact + ", read on " + p.Read
}
