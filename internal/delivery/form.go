package delivery

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

const (
	// multipartVersion labels the hash of a multipart body.
	multipartVersion = "caddy-dedup multipart v1"

	// maxFields is how many fields a form may have, and how many parts a multipart body.
	maxFields = 1000
	// maxPartHeader is how many bytes are read for the header of a part, beyond those that are buffered.
	maxPartHeader = 4 << 10
	// partRoom is the room for one parsed header of a part, of many short fields, and for the buffer.
	partRoom = 128 << 10

	typeURLEncoded = "application/x-www-form-urlencoded"
	typeMultipart  = "multipart/form-data"
)

// ErrTooManyFields is the [ErrBodyTooLarge] of a form whose key cannot be looked for in so many fields.
var ErrTooManyFields error = tooManyFields{}

type tooManyFields struct{}

func (tooManyFields) Error() string {
	return fmt.Sprintf("the form has more than %d fields", maxFields)
}

// Is reports whether the error is ErrBodyTooLarge.
func (tooManyFields) Is(target error) bool { return target == ErrBodyTooLarge }

// form finds the ID in a field of a form (of the kinds that HTML has).
func (f finder) form(name string) (item, error) {
	is, boundary := formType(f.request.Header)
	if !is && !f.request.Signed {
		return item{}, absent("the body is not a form")
	}
	body, err := f.request.parsed.bytes(f.request.Body)
	if err != nil {
		return item{}, err
	}
	if f.request.Signed {
		if isJSONText(body) {
			return item{}, absent("the body is not a form")
		}
		boundary = firstBoundary(body)
	}
	if err := f.request.roomForForm(len(body), boundary); err != nil {
		return item{}, err
	}
	var values []string
	found := func(value string) {
		if !slices.Contains(values, value) {
			values = append(values, value)
		}
	}
	if boundary == "" {
		err = eachValue(body, name, found)
	} else {
		err = eachPart(bytes.NewReader(body), boundary, func(part *multipart.Part) error {
			if part.FormName() != name || part.FileName() != "" {
				return nil
			}
			value, err := io.ReadAll(io.LimitReader(part, int64(f.maxLength)+1))
			found(string(value))
			return err
		})
	}
	_, isEscape := errors.AsType[url.EscapeError](err)
	switch {
	case errors.Is(err, ErrTooManyFields):
		return item{}, err
	case isEscape:
		return item{}, unusable("the field: %v", err)
	case err != nil:
		return item{}, missingError{isUnknown, "the body is not a form that can be read: " + err.Error()}
	case len(values) > 1:
		return item{}, unusable("the field occurs with different values")
	case len(values) == 0:
		return item{}, absent("the form does not have the field")
	case values[0] == "":
		return item{}, absent("the field is empty")
	case !utf8.ValidString(values[0]):
		return item{}, unusable("the field is not UTF-8")
	}
	return item{kind: KindForm, id: values[0]}, f.checkLength(values[0])
}

// formType reports whether the body is a form by its Content-Type, and returns the boundary of a multipart
// one.
func formType(header http.Header) (is bool, boundary string) {
	contentType := header.Get("Content-Type")
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch mediaType = strings.TrimSpace(mediaType); {
	case strings.EqualFold(mediaType, typeURLEncoded):
		return true, ""
	case strings.EqualFold(mediaType, typeMultipart):
		_, parameters, _ := mime.ParseMediaType(contentType) // with an error there are none
		return parameters["boundary"] != "", parameters["boundary"]
	}
	return false, ""
}

// firstBoundary returns the boundary with which a multipart body begins. It is for senders that sign the
// body and not its Content-Type, which could be changed in a captured request.
func firstBoundary(body []byte) string {
	line, _, found := bytes.Cut(body, []byte("\n"))
	boundary, marked := bytes.CutPrefix(bytes.TrimRight(line, "\r \t"), []byte("--"))
	if !found || !marked || len(boundary) > 70 { // RFC 2046, section 5.1.1
		return ""
	}
	return string(boundary)
}

// isJSONText reports whether a body begins like a JSON object or array. Forms escape these characters.
func isJSONText(body []byte) bool {
	begin := bytes.TrimLeft(body, " \t\r\n")
	return len(begin) > 0 && (begin[0] == '{' || begin[0] == '[')
}

// roomForForm reserves, once, the room that reading a form takes: a multipart body is read part by part,
// and names and values of the other kind are copied.
func (r Request) roomForForm(size int, boundary string) error {
	if r.parsed.hasFormRoom {
		return nil
	}
	n := 2 * size
	if boundary != "" {
		n = min(32*size, partRoom)
	}
	if err := r.room(n); err != nil {
		return err
	}
	r.parsed.hasFormRoom = true
	return nil
}

// eachValue calls found for each value of a field in an urlencoded body. A name with an invalid escape is
// that of another field.
func eachValue(body []byte, name string, found func(value string)) error {
	if bytes.Count(body, []byte("&")) >= maxFields {
		return ErrTooManyFields
	}
	for pair := range bytes.SplitSeq(body, []byte("&")) {
		field, value, _ := bytes.Cut(pair, []byte("="))
		if unescaped, err := url.QueryUnescape(string(field)); err != nil || unescaped != name {
			continue
		}
		text, err := url.QueryUnescape(string(value))
		if err != nil {
			return err
		}
		found(text)
	}
	return nil
}

// eachPart calls each for the parts of a multipart body, which must end with its last boundary.
func eachPart(body io.Reader, boundary string, each func(*multipart.Part) error) error {
	// A body that ends within the header of a part would look whole to [multipart.Reader]. The empty line
	// makes it end within the part.
	limited := &limitedReader{Reader: io.MultiReader(body, strings.NewReader("\r\n\r\n"))}
	parts := multipart.NewReader(limited, boundary)
	for n := 0; ; n++ {
		limited.left = maxPartHeader
		part, err := parts.NextRawPart()
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case n == maxFields:
			return ErrTooManyFields
		}
		limited.left = math.MaxInt
		if err := each(part); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, part); err != nil {
			return err
		}
	}
}

// limitedReader is like [io.LimitedReader], but at the limit it returns an error.
type limitedReader struct {
	io.Reader
	left int
}

// Read implements [io.Reader].
func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errors.New("the header of a part is too long")
	}
	n, err := l.Reader.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// Multipart returns a text that stands for a multipart/form-data body: a hash of its parts in order, without
// the boundary, which a browser generates for each submit. It returns "" for any other body, and for one that
// cannot be read or has more than 1,000 parts. An error is that of [Request.Reserve]. The request must remember
// its body.
func (r Request) Multipart(body iter.Seq[[]byte]) (string, error) {
	_, boundary := formType(r.Header)
	if boundary == "" && !r.Signed {
		return "", nil
	}
	pieces := slices.Collect(body)
	if r.Signed && len(pieces) > 0 {
		boundary = firstBoundary(pieces[0])
	}
	if boundary == "" {
		return "", nil
	}
	var readers []io.Reader
	size := 0
	for _, piece := range pieces {
		readers = append(readers, bytes.NewReader(piece))
		size += len(piece)
	}
	if err := r.roomForForm(size, boundary); err != nil {
		return "", err
	}
	all, content, digest := newTuple(multipartVersion), sha256.New(), [sha256.Size]byte{}
	err := eachPart(io.MultiReader(readers...), boundary, func(part *multipart.Part) error {
		for _, name := range [...]string{"Content-Disposition", "Content-Type"} { // the first has the names
			all.write([]byte(strings.Join(part.Header[name], "\n")))
		}
		content.Reset()
		_, err := io.Copy(content, part)
		all.write(content.Sum(digest[:0]))
		return err
	})
	if err != nil {
		return "", nil //nolint:nilerr // it counts as bytes
	}
	return multipartVersion + " " + all.sum(), nil
}
