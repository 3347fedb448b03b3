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
	if err := errors.Join(clientscheme.AddToScheme(scheme), monitoringv1.AddToScheme(scheme)); err != nil {
		panic(err)
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
		if !bytes.Contains(document, []byte("apiVersion:")) { // a comment at the top
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
		objects = append(objects, object)
	}
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
		name := strings.TrimPrefix(filepath.ToSlash(path), "../")
		if err != nil || filepath.Ext(path) != ".yaml" || slices.Contains(notWhole, name) || slices.Contains(notWhole, entry.Name()) {
			return err
		}
		for _, object := range manifest(t, name) {
			decoded++
			named, ok := object.(metav1.Object)
			if !ok || named.GetName() == "" {
				t.Errorf("%s: an object of the type %T has no name", name, object)
			} else if named.GetNamespace() != "" {
				t.Errorf("%s: %s is in the namespace %s; the reader chooses one", name, named.GetName(), named.GetNamespace())
			}
		}
		return nil
	})
	if err != nil || decoded < 20 {
		t.Errorf("%d objects were decoded (%v): are the manifests where this test looks?", decoded, err)
	}
	if _, err := decode([]byte("apiVersion: v1\nkind: Service\nmetadata:\n  name: a\nspec:\n  selectors: {}\n")); err == nil {
		t.Error("an unknown member is no error")
	}
}

// What stands in sidecar.yaml is explained there line by line. This is what holds the rest
// together, and what the other two ways have to have as well.
func TestSidecarOfTheManifest(t *testing.T) {
	objects := manifest(t, "sidecar.yaml")
	deployment := the[*appsv1.Deployment](t, objects)
	spec := deployment.Spec.Template.Spec
	wantFitting(t, spec, objects)
	sidecar := sidecarOf(t, spec)
	security := sidecar.SecurityContext
	if *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || *security.RunAsUser != 65532 ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) || security.Capabilities.Add != nil ||
		!*spec.SecurityContext.RunAsNonRoot || spec.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || *spec.AutomountServiceAccountToken {
		t.Errorf("the sidecar is not confined: %s and %s", inJSON(spec.SecurityContext), inJSON(security))
	}
	if sidecar.Resources.Requests.Memory().IsZero() || sidecar.Resources.Limits.Memory().IsZero() {
		t.Error("the sidecar has no memory")
	}
	// Only the start depends on the store.
	for probe, path := range map[*corev1.Probe]string{sidecar.StartupProbe: "/ready", sidecar.ReadinessProbe: "/live", sidecar.LivenessProbe: "/live"} {
		if asked := probe.HTTPGet; asked.Path != path || asked.Port.StrVal != sidecar.Ports[1].Name {
			t.Errorf("a probe asks %s; want %s", inJSON(asked), path)
		}
	}
	// A rollout and a drained node leave pods that answer, and a change reaches each pod.
	rolling, budget := deployment.Spec.Strategy.RollingUpdate, the[*policyv1.PodDisruptionBudget](t, objects)
	if rolling.MaxUnavailable.IntValue() != 0 || rolling.MaxSurge.IntValue() < 1 || *deployment.Spec.Replicas < 2 || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("a rollout is %s, and of %d pods %v may be away", inJSON(rolling), *deployment.Spec.Replicas, budget.Spec.MaxUnavailable)
	}
	if config := the[*corev1.ConfigMap](t, objects); config.Immutable == nil || !*config.Immutable {
		t.Error("the ConfigMap can be changed under its name, of which no pod would hear")
	}
}

// What stands beside a Deployment is for its pods, and for ports that they have.
func TestWhatStandsBesideTheSidecarFitsIt(t *testing.T) {
	objects := manifest(t, "sidecar.yaml")
	deployment := the[*appsv1.Deployment](t, objects)
	ingress := the[*networkingv1.NetworkPolicy](t, manifest(t, "network/sidecar-only.yaml"))
	egress := the[*networkingv1.NetworkPolicy](t, manifest(t, "network/egress.yaml"))
	monitor := the[*monitoringv1.PodMonitor](t, manifest(t, "monitoring/podmonitor.yaml"))
	selectors := []*metav1.LabelSelector{
		deployment.Spec.Selector, the[*policyv1.PodDisruptionBudget](t, objects).Spec.Selector,
		{MatchLabels: the[*corev1.Service](t, objects).Spec.Selector}, &ingress.Spec.PodSelector, &egress.Spec.PodSelector, &monitor.Spec.Selector,
	}
	for _, spread := range deployment.Spec.Template.Spec.TopologySpreadConstraints {
		selectors = append(selectors, spread.LabelSelector)
	}
	for _, selector := range selectors {
		if s, err := metav1.LabelSelectorAsSelector(selector); err != nil || s.Empty() || !s.Matches(labels.Set(deployment.Spec.Template.Labels)) {
			t.Errorf("%s (%v) does not select the pods, which have %v", selector, err, deployment.Spec.Template.Labels)
		}
	}
	var open []int
	for _, rule := range ingress.Spec.Ingress {
		for _, port := range rule.Ports {
			open = append(open, port.Port.IntValue())
		}
	}
	ports := sidecarOf(t, deployment.Spec.Template.Spec).Ports
	if !slices.Equal(open, []int{int(ports[0].ContainerPort), int(ports[1].ContainerPort)}) {
		t.Errorf("the ports %v are open; want those of the sidecar, %s", open, inJSON(ports))
	}
	if asked := *monitor.Spec.PodMetricsEndpoints[0].Port; asked != ports[1].Name {
		t.Errorf("the PodMonitor asks port %q, which the sidecar has not", asked)
	}
}
