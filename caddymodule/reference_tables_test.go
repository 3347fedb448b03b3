package caddymodule

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// rows returns the names in backquotes that begin the rows of the tables of a text,
// with the cells behind them.
func rows(text string) map[string][]string {
	found := make(map[string][]string)
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		for name := range strings.SplitSeq(cells[0], ", ") {
			found[strings.Trim(name, "`")] = cells[1:]
		}
	}
	return found
}

// The tables of the page of JSON have each field of each object, with its type.
func TestFieldsOfJSON(t *testing.T) {
	all := under(t, "json.md", "")
	for heading, of := range map[string]struct {
		object any
		more   []string // names that say which module it is
	}{
		"The handler":                  {Settings{}, []string{"handler"}},
		"The handler > keys":           {KeySource{}, nil},
		"The handler > retention_from": {RetentionSource{}, nil},
		"The handler > verify":         {Verify{}, nil},
		"The handler > hmac":           {HMAC{}, nil},
		"The handler > release_if":     {ReleaseIf{}, nil},
		"The app":                      {App{}, nil},
		"The app > limits":             {Limits{}, nil},
		"Stores > file":                {FileStore{}, nil},
		"Stores > redis":               {RedisStore{}, nil},
		"Stores > tls":                 {RedisTLS{}, nil},
		"dedup_health":                 {Health{}, []string{"handler"}},
		"dedup_dashboard":              {Dashboard{}, []string{"handler"}},
	} {
		fields := slices.Clone(of.more)
		documented := rows(all[heading])
		for _, field := range reflect.VisibleFields(reflect.TypeOf(of.object)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				continue
			}
			fields = append(fields, name)
			if cells := documented[name]; len(cells) > 0 && !strings.HasPrefix(withoutLink(cells[0]), typeNamed(field.Type)) {
				t.Errorf("docs/json.md, %s: %s is %s, and not %q", heading, name, typeNamed(field.Type), cells[0])
			}
		}
		sameWords(t, "docs/json.md, "+heading, slices.Collect(maps.Keys(documented)), fields)
	}
	var s Settings
	if err := json.Unmarshal([]byte(`{"retention": "7d"}`), &s); err != nil || s.retentionOf("") != delivery.DefaultRetention {
		t.Errorf("a duration as a text is read as %v: %v", s.Retention, err)
	}
}

func withoutLink(cell string) string { return strings.ReplaceAll(cell, "[", "") }

// typeNamed says what the page calls a type.
func typeNamed(of reflect.Type) string {
	switch {
	case of == reflect.TypeFor[caddy.Duration](), of == reflect.TypeFor[*caddy.Duration]():
		return "duration"
	case of == reflect.TypeFor[json.RawMessage]():
		return "store"
	case of == reflect.TypeFor[[]string]():
		return "list of texts"
	case of == reflect.TypeFor[[]KeySource]():
		return "list of keys"
	case of.Kind() == reflect.Slice:
		return "list of objects"
	case of.Kind() == reflect.String:
		return "text"
	case of.Kind() == reflect.Bool:
		return "true or false"
	case of.Kind() == reflect.Int, of == reflect.TypeFor[*int]():
		return "number"
	case of.Kind() == reflect.Int64, of == reflect.TypeFor[*int64]():
		return "size"
	default:
		return "object"
	}
}

// The page names each placeholder with its field of the access log, and each outcome.
func TestPlaceholdersOfThePage(t *testing.T) {
	var named, results []string
	for name, cells := range rows(under(t, "directive.md", "")["Placeholders"]) {
		placeholder, ok := strings.CutPrefix(name, "{"+report.PlaceholderPrefix)
		if !ok {
			results = append(results, name)
			continue
		}
		placeholder = strings.TrimSuffix(placeholder, "}")
		named = append(named, placeholder)
		if cells[0] != "`"+report.LogPrefix+placeholder+"`" {
			t.Errorf("%s is %s in the access log", placeholder, cells[0])
		}
	}
	sameWords(t, "the placeholders", named, report.InfoFields)
	var all []string
	for _, o := range report.Outcomes {
		all = append(all, string(o))
	}
	sameWords(t, "the outcomes", results, all)
}
