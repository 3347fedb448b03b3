package canonicaljson_test

import (
	"fmt"
	"os"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

func ExampleDocument_WriteCanonical() {
	first := `{"id": 9007199254740993, "amount": 1.50, "sent_at": "10:00"}`
	retry := `{"sent_at":"10:05","amount":1.5,"id":9007199254740993}`
	for _, body := range []string{first, retry} {
		doc, err := canonicaljson.Parse([]byte(body), nil)
		if err == nil {
			err = doc.WriteCanonical(os.Stdout, "/sent_at")
		}
		fmt.Println("", err)
	}
	// Output:
	// {"amount":1.5,"id":9007199254740993} <nil>
	// {"amount":1.5,"id":9007199254740993} <nil>
}
