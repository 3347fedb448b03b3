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

// fieldsOf returns the types of the fields that a text names, such as "text `a`, `b`; texts `c`".
func fieldsOf(text string) map[string]string {
	fields := make(map[string]string)
	for list := range strings.SplitSeq(text, "; ") {
		kind, names, ok := strings.Cut(list, " `")
		for name := range strings.SplitSeq(names, ", ") {
			if ok {
				fields[strings.Trim(name, "`")] = kind
			}
		}
	}
	return fields
}

// fieldsOfWords returns the types of the fields in a table of words.
func fieldsOfWords(t *testing.T, page string) map[string]string {
	t.Helper()
	fields := make(map[string]string)
	for word, cells := range rows(under(t, page, "")["All words"]) {
		if name, kind, renamed := strings.Cut(cells[0], ": "); renamed {
			fields[strings.Trim(name, "`")] = kind
		} else {
			fields[word] = cells[0]
		}
	}
	return fields
}

// The tables have each field of each object of JSON, with its type.
func TestFieldsOfJSON(t *testing.T) {
	objects := make(map[string]map[string]string)
	for line := range strings.Lines(under(t, "directive.md", "")["JSON"]) {
		if object, ok := strings.CutPrefix(line, "- "); ok {
			object, fields, _ := strings.Cut(object, ": ")
			objects[strings.Trim(object, "`")] = fieldsOf(strings.TrimSpace(fields))
		}
	}
	withWords := func(object, page string) map[string]string {
		all := maps.Clone(objects[object])
		if all == nil {
			all = make(map[string]string)
		}
		maps.Copy(all, fieldsOfWords(t, page))
		return all
	}
	for name, of := range map[string]struct {
		documented map[string]string
		objects    []any
		more       []string // names that say which module it is
	}{
		"handler dedup":   {withWords("handler `dedup", "directive.md"), []any{Settings{}}, []string{"handler"}},
		"key":             {objects["key"], []any{KeySource{}}, nil},
		"retention_from":  {objects["retention_from"], []any{RetentionSource{}}, nil},
		"verify":          {objects["verify"], []any{Verify{}}, nil},
		"hmac":            {objects["hmac"], []any{HMAC{}}, nil},
		"release_if":      {objects["release_if"], []any{ReleaseIf{}}, nil},
		"app":             {withWords("", "global-option.md"), []any{App{}, Limits{}}, nil},
		"store file":      {objects["store `file"], []any{FileStore{}}, []string{"store"}},
		"store redis":     {withWords("store `redis", "redis.md"), []any{RedisStore{}, RedisTLS{}}, []string{"store"}},
		"dedup_health":    {objects["dedup_health"], []any{Health{}}, []string{"handler"}},
		"dedup_dashboard": {objects["dedup_dashboard"], []any{Dashboard{}}, []string{"handler"}},
	} {
		fields := slices.Clone(of.more)
		for _, object := range of.objects {
			for _, field := range reflect.VisibleFields(reflect.TypeOf(object)) {
				field, kind := field.Tag.Get("json"), typeNamed(field.Type)
				if field, _, _ = strings.Cut(field, ","); field == "" {
					continue
				}
				fields = append(fields, field)
				if documented, ok := of.documented[field]; ok && documented != kind {
					t.Errorf("%s: %s is %s, and not %q", name, field, kind, documented)
				}
			}
		}
		sameWords(t, name+" in JSON", slices.Collect(maps.Keys(of.documented)), fields)
	}
	var s Settings
	if err := json.Unmarshal([]byte(`{"retention": "7d"}`), &s); err != nil || s.retentionOf("") != delivery.DefaultRetention {
		t.Errorf("a duration as a text is read as %v: %v", s.Retention, err)
	}
}

// typeNamed says what the tables call a type.
func typeNamed(of reflect.Type) string {
	switch {
	case of == reflect.TypeFor[caddy.Duration](), of == reflect.TypeFor[*caddy.Duration]():
		return "duration"
	case of == reflect.TypeFor[json.RawMessage]():
		return "store"
	case of == reflect.TypeFor[[]string]():
		return "texts"
	case of == reflect.TypeFor[[]KeySource]():
		return "keys"
	case of.Kind() == reflect.Slice:
		return "objects"
	case of.Kind() == reflect.String:
		return "text"
	case of.Kind() == reflect.Bool:
		return "boolean"
	case of.Kind() == reflect.Int, of == reflect.TypeFor[*int]():
		return "number"
	case of.Kind() == reflect.Int64, of == reflect.TypeFor[*int64]():
		return "size"
	default:
		return "object"
	}
}

// The page names each placeholder, with the beginning of its field of the access log, and each outcome.
func TestPlaceholdersOfThePage(t *testing.T) {
	var named, results []string
	text := under(t, "directive.md", "")["Placeholders"]
	for line := range strings.Lines(text) {
		names, ok := strings.CutPrefix(line, "- `")
		if names, _, _ = strings.Cut(names, "`: "); !ok {
			continue
		}
		if placeholder, isOne := strings.CutPrefix(names, "{"+report.PlaceholderPrefix); isOne {
			named = append(named, strings.TrimSuffix(placeholder, "}"))
		} else {
			results = append(results, strings.Split(names, "`, `")...)
		}
	}
	if !strings.Contains(text, "begin with `"+report.LogPrefix+"`") {
		t.Errorf("the page does not say that the fields of the access log begin with %s", report.LogPrefix)
	}
	sameWords(t, "the placeholders", named, report.InfoFields)
	var all []string
	for _, o := range report.Outcomes {
		all = append(all, string(o))
	}
	sameWords(t, "the outcomes", results, all)
}
