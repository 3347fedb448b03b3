package delivery_test

import (
	"fmt"
	"net/http"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func ExampleFind() {
	github, _ := delivery.ProviderNamed("github")
	request := delivery.Request{Header: http.Header{
		"X-Github-Delivery": {"72d3162e-cc78-11e3-81ab-4c9367dc0958"},
		"X-Github-Hook-Id":  {"292430182"},
	}}
	found, err := delivery.Find(github.Sources, request, 255)
	if err != nil {
		panic(err)
	}
	fmt.Println(found.Prefix, found.ID)
	fmt.Printf("%q\n", found.Scope) // one event goes to several hooks
	// Output:
	// github 72d3162e-cc78-11e3-81ab-4c9367dc0958
	// ["x-github-hook-id" "1" "292430182"]
}
