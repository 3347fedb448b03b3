package canonicaljson_test

import (
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/canonicaljson"
)

func ExampleCanonicalize() {
	first := `{"id": 9007199254740993, "amount": 1.50, "sent_at": "10:00"}`
	retry := `{"sent_at":"10:05","amount":1.5,"id":9007199254740993}`
	for _, body := range []string{first, retry} {
		canonical, err := canonicaljson.Canonicalize([]byte(body), "/sent_at")
		fmt.Println(string(canonical), err)
	}
	// Output:
	// {"amount":1.5,"id":9007199254740993} <nil>
	// {"amount":1.5,"id":9007199254740993} <nil>
}
