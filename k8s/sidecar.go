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

// Caddyfile returns the configuration that the sidecar's ConfigMap holds. It
// needs the environment variable REDIS_URL.
func Caddyfile() (string, error) {
	for decoder := yaml.NewDecoder(bytes.NewReader(sidecar)); ; {
		var object struct {
			Kind string
			Data map[string]string
		}
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return "", errors.New("sidecar.yaml has no ConfigMap with a Caddyfile")
		} else if err != nil {
			return "", fmt.Errorf("sidecar.yaml: %w", err)
		}
		if text := object.Data["Caddyfile"]; object.Kind == "ConfigMap" && text != "" {
			return text, nil
		}
	}
}
