package signature

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// adyenMembers are the members of an item that Adyen joins with colons and signs. A missing member
// counts as empty. Adyen does not sign the rest of an item.
var adyenMembers = []string{
	"/pspReference", "/originalReference", "/merchantAccountCode", adyenReference,
	"/amount/value", "/amount/currency", "/eventCode", "/success",
}

// adyenNames are the names on the paths to the signed members.
var adyenNames = strings.Split("notificationItems/NotificationRequestItem/amount"+strings.Join(adyenMembers, ""), "/")

// adyenReference is the merchant's own text, and the only member that may contain colons. If two
// members could, a forger could move bytes between them under the same signature.
const adyenReference = "/merchantReference"

// verifyAdyen checks the signature in every item of a notification.
func verifyAdyen(a *authentication, body Body) (string, error) {
	if body.size() > maxAdyenBody {
		return fmt.Sprintf("the notification is larger than %d bytes", maxAdyenBody), nil
	}
	doc, reason, err := parse(body)
	if doc == nil {
		return reason, err
	}
	if hasOtherCase(doc.Root()) {
		return otherCase, nil
	}
	n := 0
	if items, ok := doc.Root().At("/notificationItems"); ok {
		for element := range items.Elements() {
			n++
			if reason := a.checkAdyenItem(element); reason != "" {
				return fmt.Sprintf("item %d: %s", n, reason), nil
			}
		}
	}
	if n == 0 {
		return "the body has no notificationItems", nil
	}
	return "", nil
}

func (a *authentication) checkAdyenItem(element canonicaljson.Value) string {
	item, ok := element.At("/NotificationRequestItem")
	if !ok {
		return "it has no NotificationRequestItem"
	}
	amount, hasAmount := item.At("/amount")
	if hasOtherCase(element) || hasOtherCase(item) || hasAmount && hasOtherCase(amount) {
		return otherCase
	}
	text, _ := adyenText(item, "/additionalData/hmacSignature")
	digest := a.run.decode(text)
	if digest == nil {
		return "it has no hmacSignature in base64"
	}
	a.digests = [][]byte{digest}
	values := make([]string, len(adyenMembers))
	for i, pointer := range adyenMembers {
		values[i], ok = adyenText(item, pointer)
		if !ok || pointer != adyenReference && strings.Contains(values[i], ":") {
			return pointer + " is not a plain text without a colon"
		}
	}
	if !a.matches(func(to io.Writer) { _, _ = io.WriteString(to, strings.Join(values, ":")) }) {
		return noMatch
	}
	return ""
}

const otherCase = "the name of a member differs from a signed one only in case"

// hasOtherCase reports whether an object has a member whose name differs from a signed one only in
// case. Software that ignores the case of names, such as Go's encoding/json, would read it instead.
func hasOtherCase(object canonicaljson.Value) bool {
	for name := range object.Names() {
		if slices.ContainsFunc(adyenNames, func(signed string) bool { return name != signed && strings.EqualFold(name, signed) }) {
			return true
		}
	}
	return false
}

// adyenText returns the text of a member, or "" if it is missing or null. It reports false for an
// object, an array, and a string with half of a surrogate pair.
func adyenText(item canonicaljson.Value, pointer string) (string, bool) {
	value, ok := item.At(pointer)
	if !ok || value.Kind() == jsontext.KindNull {
		return "", true
	}
	text, err := value.Text()
	return text, err == nil && value.Kind() != jsontext.KindBeginObject && value.Kind() != jsontext.KindBeginArray
}
