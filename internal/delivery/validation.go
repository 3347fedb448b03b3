package delivery

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// acceptedKinds are the kinds of source that a user can configure.
const acceptedKinds = "header, json, form, value, content or parts"

// CheckMember returns an error if a JSON pointer is invalid or names several members.
func CheckMember(pointer string) error {
	if strings.Contains(pointer, "*") {
		return fmt.Errorf("JSON pointer %q has a *, which stands for several members only in exclude; write the name or the number of one, such as /items/0/id", pointer)
	}
	return canonicaljson.CheckPointer(pointer)
}

// CheckExclude returns an error if a word of exclude is invalid. It is a JSON pointer in which the
// token * matches every member or element of one level, or a query parameter as ?name, or ?* for
// all parameters.
func CheckExclude(pointer string) error {
	if name, ok := strings.CutPrefix(pointer, "?"); ok {
		if name == "" || name != "*" && strings.ContainsAny(name, "*?=&#,") {
			return fmt.Errorf("%q names no parameter of the query; write each by its name alone, such as ?ts ?sig, or ?* for all", pointer)
		}
		return nil
	}
	if pointer == "" {
		return errors.New(`JSON pointer "" would exclude the whole body; it must name a member, such as /sent_at`)
	}
	if err := canonicaljson.CheckPointer(pointer); err != nil {
		return err
	}
	for token := range strings.SplitSeq(pointer[1:], "/") {
		switch {
		case token == "-":
			return fmt.Errorf("JSON pointer %q has the token -, which names no existing element; write * for every element of the array", pointer)
		case token != "*" && strings.Contains(token, "*"):
			return fmt.Errorf("JSON pointer %q has a * inside the name %q; * stands alone, for every member or element of one level, such as /items/*/sent_at", pointer, token)
		}
	}
	return nil
}

// CheckSource returns an error if a source is invalid.
func CheckSource(s Source) error {
	if s.Optional {
		return errors.New("optional is only for parts; without it, a source that is absent is skipped and the next one is tried")
	}
	switch s.Kind {
	case KindHeader:
		return checkField(s.Header)
	case KindJSON:
		return CheckMember(s.Pointer)
	case KindForm:
		return checkFormField(s.Field)
	case KindValue:
		return checkText(s.Text)
	case KindContent:
		return nil
	case KindParts:
		return checkParts(s)
	case KindBatch:
		if s.Provider != "" {
			return checkList(s.Batch)
		}
	}
	return fmt.Errorf("source kind %q is unknown; it must be %s", s.Kind, acceptedKinds)
}

func checkField(name string) error {
	if !httpguts.ValidHeaderFieldName(name) || strings.Contains(name, "*") { // valid in a name, but no field has it
		return fmt.Errorf("header %q is not a field name; it must be letters, digits and - such as X-Request-Id", name)
	}
	return nil
}

func checkFormField(name string) error {
	switch {
	case name == "":
		return errors.New("form is empty; it must be the name of a field, such as order_token")
	case !utf8.ValidString(name):
		return fmt.Errorf("form %q is not UTF-8", name)
	case strings.HasPrefix(name, "/"), strings.HasPrefix(name, "?"):
		return fmt.Errorf("form %q is not the name of a field; write the name alone, such as %s", name, cmp.Or(name[1:], "order_token"))
	}
	return nil
}

func checkText(text string) error {
	switch {
	case text == "":
		return errors.New("value is empty; it must be a text with placeholders, such as {http.request.uri.query.id}")
	case !utf8.ValidString(text):
		return fmt.Errorf("value %q is not UTF-8", text)
	}
	return nil
}

func checkParts(s Source) error {
	if s.Provider == "" && s.Prefix == "" {
		return errors.New("parts have no prefix; it must be a word that keeps their IDs apart, such as orders")
	}
	if len(s.Parts) == 0 {
		return errors.New("parts are empty; they must have one source or more: header, json, form, value or content")
	}
	if s.Parts[0].Optional {
		return errors.New("the first part is optional; it is the delivery ID, which every request must have: write it first")
	}
	for i, part := range s.Parts {
		if part.Kind == KindParts || part.Kind == KindBatch {
			return fmt.Errorf("part %d is of kind %q; it must be header, json, form, value or content", i+1, part.Kind)
		}
		if part.Prefix != "" {
			return fmt.Errorf("part %d has the prefix %q; only the parts together have one", i+1, part.Prefix)
		}
		part.Optional = false // allowed only for parts
		if err := CheckSource(part); err != nil {
			return fmt.Errorf("part %d: %w", i+1, err)
		}
	}
	return nil
}

func checkList(l List) error {
	if len(l.Members) == 0 && len(l.Lists) == 0 {
		return fmt.Errorf("the array %q has no members to make an ID of", l.Array)
	}
	for _, pointer := range slices.Concat([]string{l.Array}, l.Members, l.Optional) {
		if err := canonicaljson.CheckPointer(pointer); err != nil {
			return err
		}
	}
	for _, inner := range l.Lists {
		if err := checkList(inner); err != nil {
			return err
		}
	}
	return nil
}
