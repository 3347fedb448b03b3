// Package test tries the manifests with the libraries of Kubernetes: it decodes them
// strictly, has kustomize build the examples, sends pods through the API server's own
// admission, and starts the built binary with what comes out. It is a module of its own:
// none of this is a requirement of the product, and nothing of the product is imported.
//
// DEDUP_BINARY names a binary to try instead of building one.
package test
