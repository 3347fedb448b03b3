package delivery_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

const urlencoded, multipartForm = "application/x-www-form-urlencoded", "multipart/form-data; boundary=B"

// parts returns a multipart body of parts, each a header and a content.
func parts(boundary string, parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		fmt.Fprintf(&b, "--%s\r\nContent-Disposition: form-data; %s", boundary, part)
	}
	return b.String() + "--" + boundary + "--\r\n"
}

func inForm(field string) delivery.Source {
	return delivery.Source{Kind: delivery.KindForm, Field: field}
}

func formRequest(contentType, body string) delivery.Request {
	r := withBody(body)
	r.Header = http.Header{"Content-Type": {contentType}}
	return r
}

func TestFormKeys(t *testing.T) {
	many := strings.Repeat("a=1&", 1000)
	for name, c := range map[string]struct {
		contentType, body string
		id, reason        string // one of the two
		unusable          bool
	}{
		"a field":              {urlencoded, "a=1&token=x", "x", "", false},
		"a charset":            {urlencoded + "; charset=UTF-8", "token=x", "x", "", false},
		"another spelling":     {"Application/X-WWW-Form-Urlencoded", "token=x", "x", "", false},
		"escapes":              {urlencoded, "to%6ben=a+b%26%C3%A4", "a b&ä", "", false},
		"a semicolon":          {urlencoded, "note=a;b&token=a;b", "a;b", "", false},
		"another's escape":     {urlencoded, "%zz=1&a=%zz&token=x", "x", "", false},
		"twice the same":       {urlencoded, "token=x&token=%78", "x", "", false},
		"as many as there may": {urlencoded, many[:len(many)-4] + "token=x", "x", "", false},
		"a part":               {multipartForm, parts("B", "name=a\r\n\r\n1\r\n", "name=\"token\"\r\n\r\nx\r\n"), "x", "", false},
		"lines of LF":          {multipartForm, strings.ReplaceAll(parts("B", "name=token\r\n\r\nx\r\n"), "\r", ""), "x", "", false},
		"a file beside it":     {multipartForm, parts("B", "name=token; filename=a\r\n\r\nfile\r\n", "name=token\r\n\r\nx\r\n"), "x", "", false},
		"an epilogue":          {multipartForm, parts("B", "name=token\r\n\r\nx\r\n") + "--B\r\n", "x", "", false},
		"twice the same part":  {multipartForm, parts("B", "name=token\r\n\r\nx\r\n", "name=token\r\n\r\nx\r\n"), "x", "", false},

		"no field":          {urlencoded, "a=1&Token=x", "", "does not have the field", false},
		"an empty field":    {urlencoded, "token=", "", "is empty", false},
		"no value":          {urlencoded, "token", "", "is empty", false},
		"an empty body":     {urlencoded, "", "", "the body is empty", false},
		"a file":            {multipartForm, parts("B", "name=token; filename=a\r\n\r\nx\r\n"), "", "does not have the field", false},
		"no file chosen":    {multipartForm, parts("B", "name=token; filename=\"\"\r\n\r\n\r\n"), "", "is empty", false},
		"JSON":              {"application/json", `{"token":"x"}`, "", "not a form", false},
		"no content type":   {"", "token=x", "", "not a form", false},
		"no boundary":       {"multipart/form-data", parts("B", "name=token\r\n\r\nx\r\n"), "", "not a form", false},
		"another kind":      {"multipart/mixed; boundary=B", parts("B", "name=token\r\n\r\nx\r\n"), "", "not a form", false},
		"another boundary":  {multipartForm, parts("C", "name=token\r\n\r\nx\r\n"), "", "can be read", false},
		"its own escape":    {urlencoded, "token=%zz", "", "invalid URL escape", true},
		"a long header":     {multipartForm, parts("B", "name=token; a="+strings.Repeat("a", 20_000)+"\r\n\r\nx\r\n"), "", "too long", false},
		"twice":             {urlencoded, "token=x&token=y", "", "different values", true},
		"twice, once empty": {urlencoded, "token=x&token=", "", "different values", true},
		"two parts":         {multipartForm, parts("B", "name=token\r\n\r\nx\r\n", "name=token\r\n\r\ny\r\n"), "", "different values", true},
		"too long":          {urlencoded, "token=" + strings.Repeat("x", maxLength+1), "", "an ID has at most", true},
		"too long a part":   {multipartForm, parts("B", "name=token\r\n\r\n"+strings.Repeat("x", maxLength+1)+"\r\n"), "", "an ID has at most", true},
		"not UTF-8":         {urlencoded, "token=%ff", "", "not UTF-8", true},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := delivery.Find([]delivery.Source{inForm("token")}, formRequest(c.contentType, c.body), maxLength)
			switch {
			case c.id != "":
				if err != nil || found.ID != c.id || found.Kind != "form" || found.Prefix != "form" {
					t.Errorf("got %+v, %v; want %q", found, err, c.id)
				}
			case err == nil || !strings.Contains(err.Error(), c.reason) || errors.Is(err, delivery.ErrUnusable) != c.unusable:
				t.Errorf("got %+v, %v; want an error with %q, unusable: %v", found, err, c.reason, c.unusable)
			}
		})
	}
}

// A multipart body that is cut off anywhere cannot be read.
func TestFormCutOff(t *testing.T) {
	body := strings.TrimSuffix(parts("B", "name=token\r\n\r\nx\r\n", "name=b; filename=c\r\nContent-Type: text/csv\r\n\r\n1\r\n"), "\r\n")
	for n := 1; n < len(body); n++ {
		found, err := delivery.Find([]delivery.Source{inForm("token")}, formRequest(multipartForm, body[:n]), maxLength)
		if err == nil || !strings.Contains(err.Error(), "can be read") {
			t.Errorf("%q: got %+v, %v", body[:n], found, err)
		}
	}
}

// A form of more fields is too large for its key, as a body over max_request_body is.
func TestFormOfTooManyFields(t *testing.T) {
	const many = 1001
	for contentType, body := range map[string]string{
		urlencoded:    strings.Repeat("a=1&", many-1) + "token=x",
		multipartForm: parts("B", slices.Repeat([]string{"name=token\r\n\r\nx\r\n"}, many)...),
	} {
		for _, source := range []delivery.Source{inForm("token"), inParts(inForm("token"), inForm("a"))} {
			_, err := delivery.Find([]delivery.Source{source}, formRequest(contentType, body), maxLength)
			if !errors.Is(err, delivery.ErrBodyTooLarge) || err.Error() != "the form has more than 1000 fields" {
				t.Errorf("%s: got %v", contentType, err)
			}
			r := formRequest(contentType, body)
			r.Header.Set("X-Id", "1")
			if found, err := delivery.Find([]delivery.Source{source, {Kind: delivery.KindHeader, Header: "X-Id"}}, r, maxLength); err != nil || found.ID != "1" {
				t.Errorf("%s: a later source has %+v, %v", contentType, found, err)
			}
		}
	}
}

// A body of another kind has no fields, and one that cannot be read may have any.
func TestFormFieldAsAnOptionalPart(t *testing.T) {
	optional := inForm("token")
	optional.Optional = true
	source := inParts(delivery.Source{Kind: delivery.KindHeader, Header: "X-Order"}, optional)
	find := func(contentType, body string) string {
		r := formRequest(contentType, body)
		r.Header.Set("X-Order", "1")
		found, err := delivery.Find([]delivery.Source{source}, r, maxLength)
		if err != nil {
			return "none"
		}
		return found.Tuple
	}
	without, with := find(urlencoded, "a=1"), find(urlencoded, "token=x")
	if without == "none" || with == "none" || with == without {
		t.Errorf("without the field the key is of %s, with it of %s", without, with)
	}
	if json := find("application/json", `{"token":"x"}`); json != without {
		t.Errorf("a body of another kind has %s, want %s as without the field", json, without)
	}
	if part := find(multipartForm, parts("B", "name=token\r\n\r\nx\r\n")); part != with {
		t.Errorf("the same field of a multipart form has %s, want %s", part, with)
	}
	for _, broken := range []string{find(multipartForm, "--B\r\n"), find(urlencoded, "token=%zz"), find(urlencoded, "token=x&token=y")} {
		if broken != "none" {
			t.Errorf("a field that cannot be read has the key %s", broken)
		}
	}
}

// The content of a multipart body is its parts, whatever their boundary.
func TestContentOfMultipartBodies(t *testing.T) {
	content := func(contentType, body string) string {
		t.Helper()
		found, err := delivery.Find([]delivery.Source{{Kind: delivery.KindContent}}, formRequest(contentType, body), maxLength)
		if err != nil {
			t.Fatal(err)
		}
		return found.ID
	}
	body := func(boundary string, all ...string) string {
		return content("multipart/form-data; boundary="+boundary, parts(boundary, all...))
	}
	const a, b = "name=a\r\n\r\n1\r\n", "name=b; filename=x\r\nContent-Type: image/png\r\n\r\n\x00\r\n2\r\n"
	first := body("B", a, b)
	if again := body("another", a, b); again != first {
		t.Error("another boundary makes another content")
	}
	others := []string{
		first, body("B", b, a), body("B", a), body("B", a, b, a), body("B"),
		body("B", a, strings.Replace(b, "2", "3", 1)), body("B", a, strings.Replace(b, "=x", "=y", 1)),
		body("B", a, strings.Replace(b, "png", "gif", 1)), body("B", a, strings.Replace(b, "name=b", "name=c", 1)),
		content("text/plain", parts("B", a, b)),
		body("B", slices.Repeat([]string{a}, 1001)...),
	}
	for i, one := range others {
		if slices.Contains(others[:i], one) {
			t.Errorf("content %d has the hash of another one", i)
		}
	}
	if unread := content("multipart/form-data; boundary=C", parts("B", a, b)); unread != content("text/plain", parts("B", a, b)) {
		t.Error("a body with another boundary does not count as bytes")
	}
	if more := body("another", slices.Repeat([]string{a}, 1001)...); more == others[len(others)-1] {
		t.Error("more than 1000 parts do not count as bytes")
	}
}

// A signed body that is JSON is no form, whatever its Content-Type says: a link in it names no key.
func TestSignedJSONIsNoForm(t *testing.T) {
	for _, body := range []string{`{"id":"e1","link":"https://x/?a=1&id=5&b=2"}`, " \r\n[1,\"&id=5&\"]", "{" + strings.Repeat("&", 2000) + "}"} {
		for _, contentType := range []string{"application/json", urlencoded, ""} {
			r := formRequest(contentType, body)
			r.Signed = true
			if found, err := delivery.Find([]delivery.Source{inForm("id")}, r, maxLength); found.ID != "" || !strings.Contains(fmt.Sprint(err), "the body is not a form") {
				t.Errorf("%s as %q: got %q, %v", body, contentType, found.ID, err)
			}
		}
	}
}

// Where the sender signs the body and not its Content-Type, a change of that changes no key.
func TestSignedFormWithAnotherContentType(t *testing.T) {
	for _, body := range []string{"token=x", parts("B", "name=token\r\n\r\nx\r\n")} {
		for _, source := range []delivery.Source{inForm("token"), {Kind: delivery.KindContent}} {
			ids := map[string]bool{}
			for _, contentType := range []string{urlencoded, multipartForm, "multipart/form-data; boundary=C", "application/json", ""} {
				r := formRequest(contentType, body)
				r.Signed = true
				found, err := delivery.Find([]delivery.Source{source}, r, maxLength)
				if err != nil {
					t.Errorf("%s as %q: %v", source, contentType, err)
				}
				ids[found.ID] = true
			}
			if len(ids) != 1 {
				t.Errorf("%s of %.10q has the IDs %v", source, body, ids)
			}
		}
	}
}

// What a form takes is reserved before it is parsed.
func TestRoomForForms(t *testing.T) {
	full := errors.New("full")
	for contentType, body := range map[string]string{urlencoded: "token=x", multipartForm: parts("B", "name=token\r\n\r\nx\r\n")} {
		for _, source := range []delivery.Source{inForm("token"), inParts(inForm("token"), inForm("token2"))} {
			r := formRequest(contentType, body)
			r.Reserve = func(int) error { return full }
			if _, err := delivery.Find([]delivery.Source{source}, r, maxLength); !errors.Is(err, full) {
				t.Errorf("%s as %s: %v, want the error of Reserve", source, contentType, err)
			}
		}
	}
}
