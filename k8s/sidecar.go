// Package k8s holds the Kubernetes manifests, so that tests can try what they
// say. Nothing else imports it.
package k8s

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"
)

//go:embed sidecar.yaml
var sidecar []byte

// documents returns the objects of the sidecar's manifest by kind. Two of one
// kind are an error.
func documents() (map[string]map[string]any, error) {
	objects := map[string]map[string]any{}
	decoder := yaml.NewDecoder(bytes.NewReader(sidecar))
	for n := 1; ; n++ {
		var object map[string]any
		err := decoder.Decode(&object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("sidecar.yaml, document %d: %w", n, err)
		}
		kind, _ := object["kind"].(string)
		if kind == "" || objects[kind] != nil {
			return nil, fmt.Errorf("sidecar.yaml, document %d: kind %q is missing or doubled", n, kind)
		}
		objects[kind] = object
	}
}

// at returns what stands in a document under a path of member names (string)
// and element numbers (int), nil where there is nothing.
func at(node any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			members, _ := node.(map[string]any)
			node = members[step]
		case int:
			elements, _ := node.([]any)
			if step >= len(elements) {
				return nil
			}
			node = elements[step]
		}
	}
	return node
}

// Caddyfile returns the configuration that the sidecar's ConfigMap holds. It
// needs the environment variable REDIS_URL.
func Caddyfile() (string, error) {
	objects, err := documents()
	if err != nil {
		return "", err
	}
	text, _ := at(objects["ConfigMap"], "data", "Caddyfile").(string)
	if text == "" {
		return "", errors.New("sidecar.yaml: the ConfigMap has no Caddyfile")
	}
	return text, nil
}
