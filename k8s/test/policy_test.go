package test

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestPoliciesInject(t *testing.T) {
	c := start(t, "mutating.yaml", "validating.yaml")
	for name, r := range injected() {
		t.Run(name, func(t *testing.T) {
			got, err := c.create(r.pod)
			if err != nil {
				t.Fatal(err)
			}
			if problem := r.wrong(t, got); problem != "" {
				t.Error(problem)
			}
			// And never twice: as it comes out, it can go in again.
			if again, err := c.create(got); err != nil || !equality.Semantic.DeepEqual(again, got) {
				t.Errorf("the pod that came out became %s (%v)", inJSON(again), err)
			}
		})
	}
}

// wrong says what is wrong with a pod that was injected, "" for nothing.
func (r request) wrong(t *testing.T, got *corev1.Pod) string {
	t.Helper()
	last := len(got.Spec.InitContainers) - 1
	if last < 0 || !isSidecar(got.Spec.InitContainers[last]) {
		return "the sidecar is not the last init container: " + inJSON(got.Spec.InitContainers)
	}
	sidecar := got.Spec.InitContainers[last]
	args := strings.Join(sidecar.Args, " ")
	if args != r.args {
		return fmt.Sprintf("its arguments are %s; want %s", args, r.args)
	}
	if problem := unlikeTheManifest(t, sidecar); problem != "" {
		return problem
	}
	if problem := r.wrongPorts(sidecar); problem != "" {
		return problem
	}
	image := r.pod.Annotations["caddy-dedup/image"]
	if image == "" {
		image = "registry.example.com/caddy-dedup:latest"
	}
	if sidecar.Image != image {
		return "its image is " + sidecar.Image
	}
	var secret corev1.SecretKeySelector
	if from := variable(sidecar, "REDIS_URL").ValueFrom; from != nil {
		secret = *from.SecretKeyRef
	}
	wanted, size := corev1.SecretKeySelector{Key: "redis-url"}, "64Mi"
	if wanted.Name = r.pod.Annotations["caddy-dedup/redis-secret"]; r.pod.Annotations["caddy-dedup/store"] == "file" {
		wanted, size = corev1.SecretKeySelector{}, "1Gi"
	}
	if secret != wanted {
		return "REDIS_URL is " + inJSON(secret)
	}
	mounts := []corev1.VolumeMount{{Name: "caddy-dedup-data", MountPath: "/data"}}
	data := volume(got.Spec, "caddy-dedup-data")
	if own := volume(r.pod.Spec, "caddy-dedup-data"); own == (corev1.VolumeSource{}) && (data.EmptyDir == nil || !data.EmptyDir.SizeLimit.Equal(resource.MustParse(size))) {
		return "the data is in " + inJSON(data) + "; want an emptyDir of " + size
	}
	// The files of secrets that the arguments name are there.
	var files, mounted []string
	for _, file := range regexp.MustCompile(`{file\./secrets/([^}]+)}`).FindAllStringSubmatch(args, -1) {
		files = append(files, file[1])
	}
	if projected := volume(got.Spec, "caddy-dedup-secrets").Projected; projected != nil {
		mounts = append(mounts, corev1.VolumeMount{Name: "caddy-dedup-secrets", MountPath: "/secrets", ReadOnly: true})
		for _, source := range projected.Sources {
			item := source.Secret.Items[0]
			if provider, _, _ := strings.Cut(item.Path, "/"); item.Path == provider+"/"+source.Secret.Name+"/"+item.Key && len(source.Secret.Items) == 1 {
				mounted = append(mounted, item.Path)
			}
		}
	}
	// So is the Caddyfile, with what the one of the manifest counts on.
	if name := r.pod.Annotations["caddy-dedup/config-map"]; name != "" {
		mounts = append(mounts, corev1.VolumeMount{Name: "caddy-dedup-config", MountPath: "/etc/caddy", ReadOnly: true})
		if config := volume(got.Spec, "caddy-dedup-config"); config.ConfigMap == nil || config.ConfigMap.Name != name {
			return "its Caddyfile is in " + inJSON(config)
		}
		if upstream, admin := variable(sidecar, "UPSTREAM_PORT").Value, variable(sidecar, "CADDY_ADMIN").Value; upstream != r.pod.Annotations["caddy-dedup/upstream-port"] || admin != "unix//data/admin.sock" {
			return fmt.Sprintf("UPSTREAM_PORT is %q and CADDY_ADMIN %q", upstream, admin)
		}
	}
	if !slices.Equal(mounted, files) || !equality.Semantic.DeepEqual(sidecar.VolumeMounts, mounts) {
		return fmt.Sprintf("it has the files %q, and mounts %s; want %q", mounted, inJSON(sidecar.VolumeMounts), files)
	}
	// What was there is there still.
	rest := got.DeepCopy()
	rest.Spec.InitContainers = rest.Spec.InitContainers[:last]
	rest.Spec.Volumes = slices.DeleteFunc(rest.Spec.Volumes, func(v corev1.Volume) bool {
		return strings.HasPrefix(v.Name, "caddy-dedup-") && volume(r.pod.Spec, v.Name) == (corev1.VolumeSource{})
	})
	if !equality.Semantic.DeepEqual(rest, r.pod) {
		return "besides the sidecar, it was changed to " + inJSON(rest)
	}
	return ""
}

// wrongPorts says in what the ports of a sidecar are not those that its arguments, or the annotations
// beside a Caddyfile, name.
func (r request) wrongPorts(sidecar corev1.Container) string {
	wanted := regexp.MustCompile(`^proxy --from :(\d+) .*--health :(\d+) `).FindStringSubmatch(strings.Join(sidecar.Args, " "))
	if r.pod.Annotations["caddy-dedup/config-map"] != "" {
		wanted = []string{"", cmp.Or(r.pod.Annotations["caddy-dedup/port"], "8080"), cmp.Or(r.pod.Annotations["caddy-dedup/health-port"], "8081")}
	}
	if wanted == nil || fmt.Sprint(sidecar.Ports[0].ContainerPort) != wanted[1] || fmt.Sprint(sidecar.Ports[1].ContainerPort) != wanted[2] {
		return fmt.Sprintf("its ports are %s; want %q", inJSON(sidecar.Ports), wanted)
	}
	return ""
}

func TestPoliciesLeaveOtherPods(t *testing.T) {
	c := start(t, "mutating.yaml", "validating.yaml")
	for name, pod := range untouched() {
		if got, err := c.create(pod); err != nil || !equality.Semantic.DeepEqual(got, pod) {
			t.Errorf("%s: it became %s (%v)", name, inJSON(got), err)
		}
	}
}

func TestPoliciesRefuse(t *testing.T) {
	c := start(t, "mutating.yaml", "validating.yaml")
	for name, r := range refused() {
		if _, err := c.create(r.pod); err == nil || !strings.Contains(err.Error(), r.reason) {
			t.Errorf("%s: it was created, or refused with %v; want %q", name, err, r.reason)
		}
	}
}

// A labelled pod never runs without its sidecar, whatever is missing in the cluster.
func TestWithoutTheMutatingPolicyPodsAreRefused(t *testing.T) {
	c := start(t, "validating.yaml")
	if _, err := c.create(newPod()); err == nil || !strings.Contains(err.Error(), "got no sidecar; apply mutating.yaml") {
		t.Errorf("the pod was created, or refused with %v", err)
	}
	if _, err := c.create(newPod(labelled(""), annotated("upstream-port", "", "redis-secret", ""))); err != nil {
		t.Errorf("a pod without the label is refused: %v", err)
	}
}

// The example's pods get the sidecar, and what stands beside them fits it.
func TestExampleOfInjection(t *testing.T) {
	objects := manifest(t, "examples/injected/payments.yaml")
	got, err := start(t, "mutating.yaml", "validating.yaml").create(examplePod(t, objects))
	if err != nil {
		t.Fatal(err)
	}
	wantFitting(t, got.Spec, objects)
}

// A Caddyfile of the component, in a ConfigMap of its own, fits an injected pod as well.
func TestInjectedCaddyfile(t *testing.T) {
	objects := manifest(t, "examples/injected/payments.yaml")
	config := the[*corev1.ConfigMap](t, kustomize(t, "../examples/recipe"))
	pod := examplePod(t, objects)
	annotated("config-map", config.Name, "providers", "", "paths", "", "verify", "")(pod)
	got, err := start(t, "mutating.yaml", "validating.yaml").create(pod)
	if err != nil {
		t.Fatal(err)
	}
	wantFitting(t, got.Spec, append(objects, config))
}

// examplePod returns the pod that a ReplicaSet makes for the Deployment among the objects.
func examplePod(t *testing.T, objects []runtime.Object) *corev1.Pod {
	t.Helper()
	template := the[*appsv1.Deployment](t, objects).Spec.Template
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Namespace, pod.GenerateName = "shop", "payments-"
	return pod
}

// The policies are for new pods alone. Those for labelled pods refuse them if they fail, and
// the one that sees the others never holds one up.
func TestOtherPodsAreNotHeldUp(t *testing.T) {
	check := func(name string, constraints *admissionv1.MatchResources, failure *admissionv1.FailurePolicyType) {
		rules := constraints.ResourceRules
		if len(rules) != 1 || !slices.Equal(rules[0].Operations, []admissionv1.OperationType{admissionv1.Create}) || !slices.Equal(rules[0].Resources, []string{"pods"}) {
			t.Errorf("%s is for %s; want new pods alone", name, inJSON(rules))
		}
		want := admissionv1.Fail
		if s := inJSON(constraints.ObjectSelector); !strings.Contains(s, `"caddy-dedup/inject":"true"`) && !strings.Contains(s, `"operator":"Exists"`) {
			want = admissionv1.Ignore
		}
		if *failure != want {
			t.Errorf("%s: if it fails, it means %s; want %s", name, *failure, want)
		}
	}
	for _, object := range append(manifest(t, "inject/mutating.yaml"), manifest(t, "inject/validating.yaml")...) {
		switch object := object.(type) {
		case *admissionv1.MutatingAdmissionPolicy:
			check(object.Name, object.Spec.MatchConstraints, object.Spec.FailurePolicy)
			if got := object.Spec.ReinvocationPolicy; got != admissionv1.IfNeededReinvocationPolicy {
				t.Errorf("%s: what another webhook takes from a pod is not put back: %s", object.Name, got)
			}
		case *admissionv1.ValidatingAdmissionPolicy:
			check(object.Name, object.Spec.MatchConstraints, object.Spec.FailurePolicy)
		}
	}
}
