package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// scheme has every kind of the manifests.
var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, monitoringv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// decode reads the documents of a manifest, as the API server would with fieldValidation
// Strict: an unknown or doubled member is an error.
func decode(text []byte) ([]runtime.Object, error) {
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if onlyComments(document) {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
		objects = append(objects, object)
	}
}

func onlyComments(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

// manifest returns the objects of a file of ../.
func manifest(t *testing.T, file string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(text)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return objects
}

// the returns the only object of a type.
func the[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	var found []T
	for _, object := range objects {
		if object, ok := object.(T); ok {
			found = append(found, object)
		}
	}
	if len(found) != 1 {
		var none T
		t.Fatalf("there are %d objects of the type %T; want one", len(found), none)
	}
	return found[0]
}

// notWhole are the files that are no manifests by themselves: what kustomize reads, and a
// patch that removes something. TestKustomizations reads them.
var notWhole = []string{"kustomization.yaml", "component/file/deployment.yaml"}

func TestManifestsDecodeStrictly(t *testing.T) {
	decoded := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		if slices.Contains(notWhole, name) || slices.Contains(notWhole, entry.Name()) {
			return nil
		}
		for _, object := range manifest(t, name) {
			decoded++
			named, ok := object.(metav1.Object)
			if !ok || named.GetName() == "" {
				t.Errorf("%s: an object of the type %T has no name", name, object)
			}
			if named.GetNamespace() != "" {
				t.Errorf("%s: %s is in the namespace %s; the reader chooses one", name, named.GetName(), named.GetNamespace())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if decoded < 20 {
		t.Errorf("%d objects were decoded: are the manifests where this test looks?", decoded)
	}
}

func TestStrictDecodingNoticesAMistake(t *testing.T) {
	for name, text := range map[string]string{
		"an unknown member": "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec:\n  selectors: {}\n",
		"a doubled member":  "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  name: b\n",
		"an unknown kind":   "apiVersion: v1\nkind: Servlet\nmetadata:\n  name: a\n",
	} {
		if _, err := decode([]byte(text)); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
}

// sidecarOf returns the sidecar of a pod.
func sidecarOf(t *testing.T, spec corev1.PodSpec) corev1.Container {
	t.Helper()
	at := slices.IndexFunc(spec.InitContainers, isSidecar)
	if at < 0 {
		t.Fatal("the pod has no sidecar")
	}
	return spec.InitContainers[at]
}

func isSidecar(c corev1.Container) bool { return c.Name == "dedup" }

// What stands beside a Deployment is for its pods, and for ports that they have.
func TestWhatStandsBesideTheSidecarFitsIt(t *testing.T) {
	objects := manifest(t, "sidecar.yaml")
	deployment := the[*appsv1.Deployment](t, objects)
	pod := labels.Set(deployment.Spec.Template.Labels)
	sidecar := sidecarOf(t, deployment.Spec.Template.Spec)
	ports := map[string]int32{}
	for _, port := range sidecar.Ports {
		ports[port.Name] = port.ContainerPort
	}
	ingress := the[*networkingv1.NetworkPolicy](t, manifest(t, "network/sidecar-only.yaml"))
	egress := the[*networkingv1.NetworkPolicy](t, manifest(t, "network/egress.yaml"))
	monitor := the[*monitoringv1.PodMonitor](t, manifest(t, "monitoring/podmonitor.yaml"))
	budget := the[*policyv1.PodDisruptionBudget](t, objects)

	selectors := map[string]*metav1.LabelSelector{
		"Deployment": deployment.Spec.Selector, "PodDisruptionBudget": budget.Spec.Selector,
		ingress.Name: &ingress.Spec.PodSelector, egress.Name: &egress.Spec.PodSelector, "PodMonitor": &monitor.Spec.Selector,
	}
	for _, spread := range deployment.Spec.Template.Spec.TopologySpreadConstraints {
		selectors["spread over "+spread.TopologyKey] = spread.LabelSelector
	}
	for name, selector := range selectors {
		if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || s.Empty() || !s.Matches(pod) {
			t.Errorf("%s selects %v (%v); the pods have %v", name, s, err, pod)
		}
	}
	if len(selectors) != 7 {
		t.Errorf("%d selectors; want those of seven", len(selectors))
	}

	open := map[int]bool{}
	for _, rule := range ingress.Spec.Ingress {
		for _, port := range rule.Ports {
			open[port.Port.IntValue()] = true
		}
	}
	if len(open) != 2 || !open[int(ports["dedup"])] || !open[int(ports["dedup-health"])] {
		t.Errorf("the ports %v are open; want the sidecar's, %v", open, ports)
	}
	if ports[*monitor.Spec.PodMetricsEndpoints[0].Port] != 8081 {
		t.Errorf("the PodMonitor asks port %q, which the sidecar has not", *monitor.Spec.PodMetricsEndpoints[0].Port)
	}
}

// A rollout and a drained node leave pods that answer.
func TestRolloutKeepsPods(t *testing.T) {
	objects := manifest(t, "sidecar.yaml")
	deployment := the[*appsv1.Deployment](t, objects)
	rolling := deployment.Spec.Strategy.RollingUpdate
	if rolling == nil || rolling.MaxUnavailable.IntValue() != 0 || rolling.MaxSurge.IntValue() < 1 {
		t.Errorf("the rollout is %v; want maxUnavailable 0, and a pod more", rolling)
	}
	budget := the[*policyv1.PodDisruptionBudget](t, objects)
	if *deployment.Spec.Replicas < 2 || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("%d replicas, of which %v may be away; want one of at least two", *deployment.Spec.Replicas, budget.Spec.MaxUnavailable)
	}
	// A change has to have a new name, or it never reaches a pod.
	config := the[*corev1.ConfigMap](t, objects)
	if config.Immutable == nil || !*config.Immutable {
		t.Error("the ConfigMap can be changed under its name, of which no pod would hear")
	}
}
