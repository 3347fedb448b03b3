package signature

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Limits for work that is done before a signature is verified.
const (
	maxTwilioForm  = 1 << 20
	maxTwilioPairs = 1000
	maxAdyenBody   = 1 << 20
)

// verifyTwilio checks a signature over the registered URL and the body. A form is signed as its sorted
// parameters, any other body by its hash in the last parameter of the URL. A form is never verified by
// a hash: its sender may have written the hash into a text message. The scheme does not prevent moving
// bytes between the name and the value of a parameter.
func verifyTwilio(a *authentication, body Body) (string, error) {
	var form []byte
	switch size := body.size(); {
	case size == 0 && a.request.Method != http.MethodGet:
		return "the body is empty, and the method is not GET", nil
	case size == 0:
	case !isForm(a.request.Header.Get("Content-Type")):
		if reason := checkBodyHash(a.request.Target, body); reason != "" {
			return reason, nil
		}
	default:
		pairs := 1
		for piece := range body.Pieces {
			pairs += bytes.Count(piece, []byte("&"))
		}
		if size > maxTwilioForm || pairs > maxTwilioPairs {
			return fmt.Sprintf("the form is larger than %d bytes or %d pairs", maxTwilioForm, maxTwilioPairs), nil
		}
		raw, err := body.Whole()
		if err != nil {
			return "", err
		}
		if err := body.Reserve(3*len(raw) + 32*pairs); err != nil { // as text, unescaped, and joined
			return "", err
		}
		var ok bool
		if form, ok = sortedForm(string(raw), pairs); !ok {
			return "the form is malformed", nil
		}
	}
	var messages []func(io.Writer)
	for _, url := range twilioURLs(a.run.urls[0], a.request.Target) {
		messages = append(messages, func(to io.Writer) {
			_, _ = io.WriteString(to, url)
			_, _ = to.Write(form)
		})
	}
	if !a.matches(messages...) {
		return noMatch, nil
	}
	return "", nil
}

// checkBodyHash compares the body with its hash, which must be the last parameter of the target.
func checkBodyHash(target string, body Body) string {
	hash := parameters(target, "bodySHA256")
	_, query, _ := strings.Cut(target, "?")
	last := query[strings.LastIndex(query, "&")+1:]
	if len(hash) != 1 || last != "bodySHA256="+hash[0] {
		return "the body is not a form, and bodySHA256 is not the last parameter of the query, once"
	}
	sum := sha256.New()
	for piece := range body.Pieces {
		sum.Write(piece)
	}
	if !bytes.Equal(decodeText(hash[0], "hex"), sum.Sum(nil)) {
		return "the body does not match bodySHA256"
	}
	return ""
}

func isForm(contentType string) bool {
	media, _, err := mime.ParseMediaType(contentType)
	return err == nil && media == "application/x-www-form-urlencoded"
}

// sortedForm joins the names and values of a form of n pairs, sorted by name and then by value, without
// repeated pairs. It returns false for a malformed form.
func sortedForm(body string, n int) (form []byte, ok bool) {
	pairs := make([][2]string, 0, n)
	for text := range strings.SplitSeq(body, "&") {
		name, value, _ := strings.Cut(text, "=")
		name, err := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err != nil || err2 != nil || strings.ContainsAny(name, "/?&=#") { // a part of the URL
			return nil, false
		}
		pairs = append(pairs, [2]string{name, value})
	}
	slices.SortFunc(pairs, func(a, b [2]string) int {
		return cmp.Or(strings.Compare(a[0], b[0]), strings.Compare(a[1], b[1]))
	})
	form = make([]byte, 0, len(body))
	for _, pair := range slices.Compact(pairs) {
		form = append(append(form, pair[0]...), pair[1]...)
	}
	return form, true
}

// twilioURLs returns the URLs that Twilio may have signed: with the port of the setting, without a
// port, and with the default port of the scheme; and for an empty path, with and without the slash.
func twilioURLs(setting, target string) (urls []string) {
	url := inURL.FindStringSubmatch(setting)
	origin, port, standard := url[1], url[2], ":443"
	if strings.HasPrefix(origin, "http://") {
		standard = ":80"
	}
	if absolute := inURL.FindStringSubmatch(target); absolute != nil {
		target = absolute[3]
	}
	targets := []string{target}
	if bare := strings.TrimPrefix(target, "/"); bare == "" || bare[0] == '?' {
		targets = append(targets, bare)
	}
	for _, port := range []string{port, "", standard} {
		for _, target := range targets {
			if url := origin + port + target; !slices.Contains(urls, url) {
				urls = append(urls, url)
			}
		}
	}
	return urls
}

// inURL matches a URL. Its groups are the origin with user and password, the port with its colon, and
// the rest.
var inURL = regexp.MustCompile(`^(https?://[^/?#\s:][^/?#\s]*?)(:\d+)?([/?][^#\s]*)?$`)
