package test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
)

// cluster is the admission of an API server: its own plugins for both kinds of policies,
// in its own chain, which calls them again where it has to.
type cluster struct {
	chain   admission.Interface
	objects admission.ObjectInterfaces
}

// policies are the files of ../inject.
func policies(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range []string{"mutating.yaml", "validating.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "inject", name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	return files
}

// webhook stands for a mutating webhook, which comes after the policies. It returns
// whether it changed the pod.
type webhook func(*corev1.Pod) bool

func (webhook) Handles(admission.Operation) bool { return true }

func (w webhook) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if w != nil && w(a.GetObject().(*corev1.Pod)) {
		a.GetReinvocationContext().SetShouldReinvoke() // as the plugin for webhooks does
	}
	return nil
}

// start runs the admission of a cluster in which the files were applied.
func start(t *testing.T, files map[string]string, hook webhook) *cluster {
	t.Helper()
	inCluster := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}
	for name, text := range files {
		objects, err := decode([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, object := range objects {
			withDefaults(object)
		}
		inCluster = append(inCluster, objects...)
	}
	plugins := admission.NewPlugins()
	mutating.Register(plugins)
	validating.Register(plugins)
	const webhooks = "MutatingAdmissionWebhook"
	plugins.Register(webhooks, func(io.Reader) (admission.Interface, error) { return hook, nil })

	client := clientWithSchemas{fake.NewClientset(inCluster...)}
	shared := informers.NewSharedInformerFactory(client, 0)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		shared.Shutdown()
	})
	chain, err := plugins.NewFromPlugins(
		[]string{mutating.PluginName, webhooks, validating.PluginName}, // the API server's order
		noConfiguration{},
		initializer.New(client, dynamicfake.NewSimpleDynamicClient(scheme), shared, authorizerfactory.NewAlwaysAllowAuthorizer(),
			utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), meta.NewDefaultRESTMapper(nil)),
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	return &cluster{chain: chain, objects: admission.NewObjectInterfacesFromScheme(scheme)}
}

// withDefaults fills in what the API server does when a policy is stored: its own code for
// that is in no library.
func withDefaults(object runtime.Object) {
	var constraints *admissionv1.MatchResources
	switch policy := object.(type) {
	case *admissionv1.MutatingAdmissionPolicy:
		constraints = policy.Spec.MatchConstraints
	case *admissionv1.ValidatingAdmissionPolicy:
		constraints = policy.Spec.MatchConstraints
	default:
		return
	}
	for _, selector := range []**metav1.LabelSelector{&constraints.NamespaceSelector, &constraints.ObjectSelector} {
		if *selector == nil {
			*selector = new(metav1.LabelSelector) // all
		}
	}
	if constraints.MatchPolicy == nil {
		equivalent := admissionv1.Equivalent
		constraints.MatchPolicy = &equivalent
	}
}

// create sends a new pod through the admission, and returns what would be stored.
func (c *cluster) create(pod *corev1.Pod) (*corev1.Pod, error) {
	pod = pod.DeepCopy()
	attributes := admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), "shop", pod.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{}, false, &user.DefaultInfo{Name: "tester"})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.chain.(admission.MutationInterface).Admit(ctx, attributes, c.objects); err != nil {
		return nil, err
	}
	err := c.chain.(admission.ValidationInterface).Validate(ctx, attributes, c.objects)
	return attributes.GetObject().(*corev1.Pod), err
}

// awaitSchemas waits until the mutating plugin, which looks for them in the background, has
// the schemas of pods. Until then it answers that it is not available yet.
func (c *cluster) awaitSchemas(t *testing.T) {
	t.Helper()
	eventually(t, "the plugin has schemas", func() error {
		_, err := c.create(newPod())
		if apierrors.IsServiceUnavailable(err) {
			return err
		}
		return nil
	})
}

type noConfiguration struct{}

func (noConfiguration) ConfigFor(string) (io.Reader, error) { return nil, nil }

// clientWithSchemas is a client of an API server that publishes schemas. The mutating
// plugin wants that there is one for pods; a JSON patch does not use it.
type clientWithSchemas struct{ kubernetes.Interface }

func (c clientWithSchemas) Discovery() discovery.DiscoveryInterfaces {
	return discoveryWithSchemas{c.Interface.Discovery()}
}

// IsWatchListSemanticsUnSupported is what the fake client says of itself, too.
func (clientWithSchemas) IsWatchListSemanticsUnSupported() bool { return true }

type discoveryWithSchemas struct{ discovery.DiscoveryInterfaces }

func (discoveryWithSchemas) OpenAPIV3() openapi.Client { return schemas{} }

type schemas struct{}

func (schemas) Paths() (map[string]openapi.GroupVersion, error) {
	return map[string]openapi.GroupVersion{"api/v1": schemas{}}, nil
}

func (schemas) Schema(string) ([]byte, error) {
	return []byte(`{"openapi":"3.0.0","components":{"schemas":{}}}`), nil
}

func (schemas) ServerRelativeURL() string { return "/openapi/v3/api/v1" }
