package test

import (
	"context"
	"io"
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
	"k8s.io/client-go/openapi/openapitest"
)

// cluster is the admission of an API server: its own plugins for both kinds of policies.
type cluster struct {
	chain   admission.Interface
	objects admission.ObjectInterfaces
}

// start runs the admission of a cluster in which files of ../inject were applied.
func start(t *testing.T, files ...string) *cluster {
	t.Helper()
	inCluster := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}
	for _, file := range files {
		for _, object := range manifest(t, "inject/"+file) {
			inCluster = append(inCluster, withDefaults(object))
		}
	}
	plugins := admission.NewPlugins()
	mutating.Register(plugins)
	validating.Register(plugins)
	client := clientWithSchemas{fake.NewClientset(inCluster...)}
	shared := informers.NewSharedInformerFactory(client, 0)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		shared.Shutdown()
	})
	chain, err := plugins.NewFromPlugins(
		[]string{mutating.PluginName, validating.PluginName}, noConfiguration{},
		initializer.New(client, dynamicfake.NewSimpleDynamicClient(scheme), shared, authorizerfactory.NewAlwaysAllowAuthorizer(),
			utilfeature.DefaultFeatureGate, compatibility.DefaultBuildEffectiveVersion(), ctx.Done(), meta.NewDefaultRESTMapper(nil)),
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	shared.Start(ctx.Done())
	shared.WaitForCacheSync(ctx.Done())
	c := &cluster{chain: chain, objects: admission.NewObjectInterfacesFromScheme(scheme)}
	// The mutating plugin looks for schemas in the background, and is not available before.
	eventually(t, "the plugins are available", func() error {
		_, err := c.create(newPod())
		if apierrors.IsServiceUnavailable(err) {
			return err
		}
		return nil
	})
	return c
}

// withDefaults fills in what the API server does when a policy is stored: its own code for
// that is in no library.
func withDefaults(object runtime.Object) runtime.Object {
	var constraints *admissionv1.MatchResources
	switch policy := object.(type) {
	case *admissionv1.MutatingAdmissionPolicy:
		constraints = policy.Spec.MatchConstraints
	case *admissionv1.ValidatingAdmissionPolicy:
		constraints = policy.Spec.MatchConstraints
	default:
		return object
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
	return object
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

type noConfiguration struct{}

func (noConfiguration) ConfigFor(string) (io.Reader, error) { return nil, nil }

// clientWithSchemas publishes the schemas that an API server of these libraries' version
// does, of which the mutating plugin wants that of pods.
type clientWithSchemas struct{ kubernetes.Interface }

func (c clientWithSchemas) Discovery() discovery.DiscoveryInterfaces {
	return discoveryWithSchemas{c.Interface.Discovery()}
}

// IsWatchListSemanticsUnSupported is what the fake client says of itself, too.
func (clientWithSchemas) IsWatchListSemanticsUnSupported() bool { return true }

type discoveryWithSchemas struct{ discovery.DiscoveryInterfaces }

func (discoveryWithSchemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }
