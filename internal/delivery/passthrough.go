package delivery

import "slices"

// Pass describes requests that are no deliveries, such as the handshake of a
// new subscription: they must reach the upstream each time.
type Pass struct {
	// Header is the field that tells, or
	Header string
	// Pointer is the JSON pointer to the string or number that tells.
	Pointer string
	// Values are those that tell; without any, the presence does.
	Values []string
}

// PassThrough returns the name of the provider to which the request is no
// delivery, and whether there is one. A body that cannot be had tells nothing.
func PassThrough(providers []Provider, request Request) (name string, ok bool) {
	request = request.Remember()
	for _, p := range providers {
		if p.PassesThrough(request) {
			return p.Name, true
		}
	}
	return "", false
}

// PassesByBody reports whether the body tells which of the provider's requests
// are no deliveries.
func (p Provider) PassesByBody() bool {
	return slices.ContainsFunc(p.Passes, func(pass Pass) bool { return pass.Pointer != "" })
}

// PassesThrough reports whether the request is none of the provider's
// deliveries, and is to reach the upstream without a claim.
func (p Provider) PassesThrough(request Request) bool {
	request = request.Remember()
	return slices.ContainsFunc(p.Passes, func(pass Pass) bool { return pass.matches(request) })
}

func (p Pass) matches(request Request) bool {
	told := headerLines(request.Header, p.Header)
	if p.Pointer != "" {
		doc, err := request.parsed.document(request.Body)
		if err != nil {
			return false
		}
		found, err := member(doc.Root(), p.Pointer)
		if err != nil {
			return false
		}
		told = []string{found.id}
	}
	if len(p.Values) == 0 {
		return len(told) > 0
	}
	return slices.ContainsFunc(told, func(value string) bool { return slices.Contains(p.Values, value) })
}
