package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// UnmarshalJSON implements [json.Unmarshaler], as [unmarshal] does.
func (h *Handler) UnmarshalJSON(data []byte) error { return unmarshal(data, &h.Settings) }

// UnmarshalJSON implements [json.Unmarshaler], as [unmarshal] does.
func (a *App) UnmarshalJSON(data []byte) error {
	type fields App // without this method
	return unmarshal(data, (*fields)(a))
}

// UnmarshalJSON implements [json.Unmarshaler], as [unmarshal] does.
func (s *RedisStore) UnmarshalJSON(data []byte) error {
	type fields RedisStore
	return unmarshal(data, (*fields)(s))
}

// UnmarshalJSON implements [json.Unmarshaler], as [unmarshal] does.
func (s *FileStore) UnmarshalJSON(data []byte) error {
	type fields FileStore
	return unmarshal(data, (*fields)(s))
}

// UnmarshalJSON implements [json.Unmarshaler], as [unmarshal] does.
func (d *Dashboard) UnmarshalJSON(data []byte) error {
	type fields Dashboard
	return unmarshal(data, (*fields)(d))
}

// UnmarshalJSON implements [json.Unmarshaler], as [unmarshal] does.
func (h *Health) UnmarshalJSON(data []byte) error {
	type fields Health
	return unmarshal(data, (*fields)(h))
}

// unmarshal reads an object into a struct and refuses unknown fields, as Caddy does. Its errors name
// the fields of JSON, where those of encoding/json name types of Go. No error shows a text or a
// number of a text's field: it may be a secret.
func unmarshal(data []byte, into any) error {
	if err := checkJSON(data, reflect.TypeOf(into).Elem(), ""); err != nil {
		return err
	}
	return caddy.StrictUnmarshalJSON(data, into)
}

// checkJSON returns what prevents a value from being read into a type. The path is that of its field.
func checkJSON(data json.RawMessage, t reflect.Type, path string) error {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	value := reflect.New(t)
	switch {
	case string(data) == "null" || t == reflect.TypeFor[json.RawMessage](): // the module of a store checks its own
		return nil
	case t == reflect.TypeFor[caddy.Duration]():
		return named(path, checkJSONDuration(data))
	case t.Kind() == reflect.Struct && data[0] == '{':
		return checkObject(data, t, path)
	case t.Kind() == reflect.Slice && data[0] == '[':
		var items []json.RawMessage
		errs := []error{json.Unmarshal(data, &items)}
		for i, item := range items {
			errs = append(errs, checkJSON(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i)))
		}
		return errors.Join(errs...)
	case json.Unmarshal(data, value.Interface()) == nil:
		return nil
	}
	return named(path, notAccepted(data, t))
}

// checkObject is checkJSON for the members of an object.
func checkObject(data json.RawMessage, t reflect.Type, path string) error {
	var members map[string]json.RawMessage
	errs := []error{json.Unmarshal(data, &members)}
	fields := jsonFields(t)
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		// encoding/json ignores case.
		if i := slices.IndexFunc(names, func(field string) bool { return strings.EqualFold(field, name) }); i >= 0 {
			errs = append(errs, checkJSON(members[name], fields[names[i]], strings.TrimPrefix(path+"."+names[i], ".")))
			continue
		}
		errs = append(errs, named(path, fmt.Errorf("unknown field %q; %s", withoutPassword(name), meant(name, names))))
	}
	return errors.Join(errs...)
}

// jsonFields returns the types of the fields of a struct by their names in JSON.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for field := range t.Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			fields[name] = field.Type
		}
	}
	return fields
}

// checkJSONDuration refuses a number that is too short for any setting: it was meant as seconds.
func checkJSONDuration(data json.RawMessage) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		_, err := caddy.ParseDuration(text)
		switch {
		case err == nil:
			return nil
		case durations.MatchString(text):
			return fmt.Errorf(`%q is too long; use at most "36500d"`, text)
		}
		return fmt.Errorf(`%q is not a duration; use one such as "30s" or "7d"`, withoutPassword(text))
	}
	var n int64
	if json.Unmarshal(data, &n) != nil {
		return notAccepted(data, reflect.TypeFor[caddy.Duration]())
	}
	if 0 < n && n < int64(time.Millisecond) {
		return fmt.Errorf("%d is %s, because a number is nanoseconds; write %q for %[1]d seconds", n, time.Duration(n), ShortDuration(time.Duration(n)*time.Second))
	}
	return nil
}

// ShortDuration writes a duration without the zeros at its end.
func ShortDuration(d time.Duration) string {
	text := strings.Replace(d.String(), "m0s", "m", 1)
	return strings.Replace(text, "h0m", "h", 1)
}

// notAccepted refuses a value for a type.
func notAccepted(data json.RawMessage, t reflect.Type) error {
	value := "a number"
	switch {
	case data[0] == '"':
		value = "a text"
	case data[0] == '{':
		value = "an object"
	case data[0] == '[':
		value = "a list"
	case data[0] == 't' || data[0] == 'f':
		value = string(data)
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64: // no secret
		value = string(data)
	}
	return fmt.Errorf("%s is not accepted; use %s", value, typeName(t))
}

// typeName describes a type in an error.
func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[caddy.Duration]():
		return `a duration such as "30s" or "7d"`
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return "a list of texts"
	case t.Kind() == reflect.Slice:
		return "a list of objects"
	case t.Kind() == reflect.Struct:
		return "an object"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "a text"
	}
	return "a whole number"
}
