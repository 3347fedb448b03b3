package delivery

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

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

// CheckSource returns an error if a source of a configuration is invalid. It does not check parts one by one.
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
	case KindParts:
		return checkParts(s)
	}
	return nil
}

func checkField(name string) error {
	if !httpguts.ValidHeaderFieldName(name) || strings.Contains(name, "*") { // valid in a name, but no field has it
		return fmt.Errorf("header %q is not a field name; it must be letters, digits and - such as X-Request-Id", name)
	}
	return nil
}

func checkFormField(name string) error {
	if strings.HasPrefix(name, "/") || strings.HasPrefix(name, "?") {
		return fmt.Errorf("form %q is not the name of a field; write the name alone, such as %s", name, cmp.Or(name[1:], "order_token"))
	}
	return nil
}

func checkParts(s Source) error {
	if s.Provider == "" {
		return errors.New("parts have no prefix; it must be a word that keeps their IDs apart, such as orders")
	}
	if s.Parts[0].Optional {
		return errors.New("the first part is optional; it is the delivery ID, which every request must have: write it first")
	}
	for i, part := range s.Parts {
		if part.Kind == KindParts {
			return fmt.Errorf("part %d is of kind %q; it must be header, json, form, value or content", i+1, part.Kind)
		}
		if part.Provider != "" {
			return fmt.Errorf("part %d has the prefix %q; only the parts together have one", i+1, part.Provider)
		}
	}
	return nil
}
