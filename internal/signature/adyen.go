package signature

import (
	"crypto/hmac"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

// adyenMembers are the members of an item that Adyen joins by colons and signs; a missing one is
// empty. The rest of an item is not signed.
var adyenMembers = []string{
	"/pspReference", "/originalReference", "/merchantAccountCode", adyenReference,
	"/amount/value", "/amount/currency", "/eventCode", "/success",
}

// adyenReference is the merchant's own text, the only member that may have a colon: with a second
// one, bytes could move from one member to the next under the same signature.
const adyenReference = "/merchantReference"

// verifyAdyen checks the signature in every item of a notification.
func (k *keyed) verifyAdyen(body Body) (string, error) {
	doc, reason, err := parse(body)
	if doc == nil {
		return reason, err
	}
	list, ok := doc.Root().At("/notificationItems")
	if !ok {
		return "the body has no notificationItems", nil
	}
	n := 0
	for element := range list.Elements() {
		n++
		item, ok := element.At("/NotificationRequestItem")
		if !ok {
			return fmt.Sprintf("item %d has no NotificationRequestItem", n), nil
		}
		if reason := k.checkAdyenItem(item); reason != "" {
			return fmt.Sprintf("item %d: %s", n, reason), nil
		}
	}
	if n == 0 {
		return "the body has no notificationItems", nil
	}
	return "", nil
}

func (k *keyed) checkAdyenItem(item canonicaljson.Value) string {
	text, ok := adyenText(item, "/additionalData/hmacSignature")
	digest, decoded := decodeDigest(text, "base64", k.size)
	if !ok || !decoded {
		return "it has no hmacSignature in base64"
	}
	values := make([]string, len(adyenMembers))
	for i, pointer := range adyenMembers {
		values[i], ok = adyenText(item, pointer)
		if !ok || pointer != adyenReference && strings.Contains(values[i], ":") {
			return pointer + " is not a plain text without a colon"
		}
	}
	for _, key := range k.keys {
		mac := hmac.New(k.newHash, key)
		mac.Write([]byte(strings.Join(values, ":")))
		if hmac.Equal(mac.Sum(nil), digest) {
			return ""
		}
	}
	return noMatch
}

// adyenText returns a member as text, which is empty if there is none, and false if it is none.
func adyenText(item canonicaljson.Value, pointer string) (string, bool) {
	value, ok := item.At(pointer)
	if !ok || value.Kind() == jsontext.KindNull {
		return "", true
	}
	text, err := value.Text()
	return text, err == nil && value.Kind() != jsontext.KindBeginObject && value.Kind() != jsontext.KindBeginArray
}
