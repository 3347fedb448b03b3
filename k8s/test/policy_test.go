package test

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// startReady returns a cluster of which the policies are read.
func startReady(t *testing.T, files map[string]string, hook webhook) *cluster {
	t.Helper()
	c := start(t, files, hook)
	c.awaitSchemas(t)
	return c
}

func TestPolicies(t *testing.T) {
	c := startReady(t, policies(t), nil)
	pod := podOfTheManifest(t)
	for name, r := range requests() {
		t.Run(name, func(t *testing.T) {
			if err := r.try(c, pod); err != nil {
				t.Error(err)
			}
		})
	}
}

// The example's pods get the sidecar, and its Service sends to it.
func TestExampleOfInjection(t *testing.T) {
	objects := manifest(t, "examples/injected/payments.yaml")
	template := the[*appsv1.Deployment](t, objects).Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.GenerateName = "shop", "payments-"
	got, err := startReady(t, policies(t), nil).create(pod)
	if err != nil {
		t.Fatal(err)
	}
	sidecar := sidecarOf(t, got.Spec)
	wantSameSidecar(t, sidecar)
	values(t, sidecar, objects) // its Secret is there
	secret := the[*corev1.Secret](t, objects)
	for _, source := range volume(got.Spec, "caddy-dedup-secrets").Projected.Sources {
		if key := source.Secret.Items[0].Key; source.Secret.Name != secret.Name || secret.StringData[key] == "" {
			t.Errorf("the secret of a sender is %s, which is not there", inJSON(source.Secret))
		}
	}
	asksTheSidecar(t, got.Spec.Containers[0], sidecar)
	if port := the[*corev1.Service](t, objects).Spec.Ports[0].TargetPort.IntValue(); int32(port) != sidecar.Ports[0].ContainerPort {
		t.Errorf("the Service sends to %d; the sidecar's port is %d", port, sidecar.Ports[0].ContainerPort)
	}
}

// Where something else changes the pod afterwards, all of it runs again.
func TestPolicyIsCalledAgain(t *testing.T) {
	calls := 0
	mesh := webhook(func(pod *corev1.Pod) bool {
		calls++
		if slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == "mesh" }) {
			return false
		}
		pod.Spec.InitContainers = append([]corev1.Container{{Name: "mesh", Image: "mesh"}}, pod.Spec.InitContainers...)
		return true
	})
	got, err := startReady(t, policies(t), mesh).create(newPod())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, container := range got.Spec.InitContainers {
		names = append(names, container.Name)
	}
	if !slices.Equal(names, []string{"mesh", "dedup"}) || calls < 2 {
		t.Errorf("the init containers are %q after %d calls of the webhook; want one of each", names, calls)
	}

	// One that removes the sidecar gets it back.
	removed := false
	got, err = startReady(t, policies(t), func(pod *corev1.Pod) bool {
		was := removed
		removed = true
		pod.Spec.InitContainers = slices.DeleteFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return !was && isSidecar(c) })
		return !was
	}).create(newPod())
	if err != nil || !slices.ContainsFunc(got.Spec.InitContainers, isSidecar) {
		t.Errorf("the sidecar that a webhook removed did not come back: %v", err)
	}
}

// A label that comes from a webhook comes too late for the sidecar: the API server calls
// only those policies again that it has called before. So the pod is refused.
func TestLabelOfAWebhookIsTooLate(t *testing.T) {
	labels := webhook(func(pod *corev1.Pod) bool {
		was := pod.Labels["caddy-dedup/inject"]
		pod.Labels["caddy-dedup/inject"] = "true"
		return was == ""
	})
	c := startReady(t, policies(t), labels)
	if _, err := c.create(newPod(withoutLabel)); err == nil || !strings.Contains(err.Error(), "got no sidecar") {
		t.Errorf("the pod was created, or refused with %v", err)
	}
}

// A labelled pod never runs without its sidecar, whatever is missing in the cluster.
func TestWithoutTheMutatingPolicyPodsAreRefused(t *testing.T) {
	files := policies(t)
	delete(files, "mutating.yaml")
	c := start(t, files, nil)
	if _, err := c.create(newPod()); err == nil || !strings.Contains(err.Error(), "got no sidecar; apply mutating.yaml") {
		t.Errorf("the pod was created, or refused with %v", err)
	}
	if _, err := c.create(newPod(withoutLabel, withoutAnnotations)); err != nil {
		t.Errorf("a pod without the label is refused: %v", err)
	}
}

// The policies look at new pods alone; those for labelled pods ask the API server to leave
// out the others, and the one that sees them never holds one up by failing.
func TestOtherPodsAreNotHeldUp(t *testing.T) {
	matches := func(selector *metav1.LabelSelector, set map[string]string) bool {
		s, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && s.Matches(labels.Set(set))
	}
	seen := 0
	for _, file := range []string{"inject/mutating.yaml", "inject/validating.yaml"} {
		bound := map[string]bool{}
		for _, object := range manifest(t, file) {
			var name string
			var constraints *admissionv1.MatchResources
			var failure *admissionv1.FailurePolicyType
			switch object := object.(type) {
			case *admissionv1.MutatingAdmissionPolicy:
				name, constraints, failure = object.Name, object.Spec.MatchConstraints, object.Spec.FailurePolicy
			case *admissionv1.ValidatingAdmissionPolicy:
				name, constraints, failure = object.Name, object.Spec.MatchConstraints, object.Spec.FailurePolicy
			case *admissionv1.MutatingAdmissionPolicyBinding:
				bound[object.Spec.PolicyName] = true
				continue
			case *admissionv1.ValidatingAdmissionPolicyBinding:
				bound[object.Spec.PolicyName] = slices.Equal(object.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny})
				continue
			}
			seen++
			bound[name] = bound[name] || false
			if rules := constraints.ResourceRules; len(rules) != 1 || !slices.Equal(rules[0].Operations, []admissionv1.OperationType{admissionv1.Create}) ||
				!slices.Equal(rules[0].Resources, []string{"pods"}) {
				t.Errorf("%s is for %s; want new pods alone", name, inJSON(rules))
			}
			if others := matches(constraints.ObjectSelector, nil); others && *failure != admissionv1.Ignore {
				t.Errorf("%s sees pods without the label, and its failure holds them up", name)
			}
			if labelled := matches(constraints.ObjectSelector, map[string]string{"caddy-dedup/inject": "true"}); labelled && *failure != admissionv1.Fail {
				t.Errorf("%s sees pods with the label, and lets them pass if it fails", name)
			}
		}
		for name, denies := range bound {
			if !denies {
				t.Errorf("%s has no binding, or one that lets pods pass", name)
			}
		}
	}
	if seen != 3 {
		t.Errorf("%d policies; want three", seen)
	}
}
