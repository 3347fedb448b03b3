package caddymodule

import (
	"testing"
)

// form is the type of a form that is not multipart.
const form = "Content-Type: application/x-www-form-urlencoded"

// multipartBody is a form with an ID and a file.
func multipartBody(boundary, id string) string {
	return "--" + boundary + "\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n" + id +
		"\r\n--" + boundary + "\r\nContent-Disposition: form-data; name=\"photo\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n\x89PNG\r\n--" + boundary + "--\r\n"
}

// A browser generates another boundary for each submit, which is the same request all the same.
func TestMultipartSubmittedTwice(t *testing.T) {
	submit := func(s *site, boundary, id string) answer {
		return s.send(with(multipartBody(boundary, id), "Content-Type: multipart/form-data; boundary="+boundary, "Idempotency-Key: k"))
	}
	for lines, other := range map[string]struct {
		status  int // of a submit with another ID
		differs string
		replays bool
	}{
		"":                                   {422, "", false},
		"fingerprint json":                   {422, "", false},
		"fingerprint none":                   {201, "", true},
		"key content":                        {201, "", false},
		"key form id":                        {201, "", false},
		"key parts a {\nform id\ncontent\n}": {201, "", false},
		"mode webhook":                       {201, "true", true},
		"mode webhook\nkey header X\nkey content": {201, "", false},
	} {
		address, _ := startUpstream(t, answers(201, "done"))
		s := serve(t, "header >X-Differs {http.dedup.differs}", "dedup {", lines, "}", "reverse_proxy "+address)
		first, second, third := submit(s, "one", "1"), submit(s, "two", "1"), submit(s, "three", "2")
		if first.status != 201 || second.status != 201 || second.header.Get("Idempotent-Replayed") != "true" || second.header.Get("X-Differs") != "" {
			t.Errorf("%q: the first submit got %d, the second %d %v", lines, first.status, second.status, second.header)
		}
		if third.status != other.status || third.header.Get("X-Differs") != other.differs || (third.header.Get("Idempotent-Replayed") != "") != other.replays {
			t.Errorf("%q: a submit with another ID got %d %v; want %+v", lines, third.status, third.header, other)
		}
		s.stop()
	}
}
