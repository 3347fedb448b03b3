package test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// page returns the fenced blocks of docs/kubernetes.md in a language, and its whole text.
func page(t *testing.T, language string) (blocks []string, whole string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if block[1] == language {
			blocks = append(blocks, block[2])
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("the page has no block of %s", language)
	}
	return blocks, string(text)
}

// The page's commands name files that are there, and a Deployment and a container that the
// manifest has. More than that needs a cluster.
func TestCommandsOfTheKubernetesPage(t *testing.T) {
	blocks, _ := page(t, "sh")
	deployment := the[*appsv1.Deployment](t, manifest(t, "sidecar.yaml"))
	for _, block := range blocks {
		for line := range strings.Lines(block) {
			words := strings.Fields(line)
			if len(words) == 0 || words[0] != "kubectl" {
				t.Errorf("%q is no command of kubectl", line)
				continue
			}
			for i, word := range words[:len(words)-1] {
				next := words[i+1]
				switch word {
				case "-f":
					if _, err := os.Stat(filepath.Join("..", "..", next)); err != nil {
						t.Errorf("%q: %v", line, err)
					}
				case "-k":
					if _, err := os.Stat(filepath.Join("..", "..", next, "kustomization.yaml")); err != nil {
						t.Errorf("%q: %v", line, err)
					}
				case "-c":
					if next != sidecarOf(t, deployment.Spec.Template.Spec).Name {
						t.Errorf("%q: the sidecar has another name", line)
					}
				}
			}
			for _, word := range words {
				if name, ok := strings.CutPrefix(word, "deploy/"); ok && name != deployment.Name {
					t.Errorf("%q: the Deployment is %s", line, deployment.Name)
				}
			}
		}
	}
}

// What the page shows to be copied does what it says.
func TestExamplesOfTheKubernetesPage(t *testing.T) {
	blocks, whole := page(t, "yaml")
	if len(blocks) != 5 {
		t.Fatalf("%d blocks; want a probe, a kustomization, a patch for it, the annotations of a pod, and a volume for it", len(blocks))
	}
	var probed corev1.Container
	if err := yaml.UnmarshalStrict([]byte(blocks[0]), &probed); err != nil {
		t.Fatal(err)
	}
	asksTheSidecar(t, probed, sidecarOf(t, podOfTheManifest(t)))

	files := manifestsInMemory(t)
	application, err := files.ReadFile("/k8s/examples/payments/payments.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, files, "/k8s/mine/payments.yaml", string(application))
	kustomization := strings.Replace(blocks[1], "github.com/caddy-dedup/caddy-dedup//k8s/component?ref=main", "../component", 1)
	write(t, files, "/k8s/mine/kustomization.yaml", kustomization)
	stops := func() int64 {
		spec := the[*appsv1.Deployment](t, kustomize(t, files, "/k8s/mine")).Spec.Template.Spec
		sidecarOf(t, spec)
		return *spec.TerminationGracePeriodSeconds
	}
	// The component replaces the application's own value, and a patch comes after it.
	write(t, files, "/k8s/mine/payments.yaml", strings.Replace(string(application),
		"      initContainers:\n", "      terminationGracePeriodSeconds: 120\n      initContainers:\n", 1))
	if got := stops(); got != 60 {
		t.Errorf("with the component the pod has %d s to end; the page says 60", got)
	}
	write(t, files, "/k8s/mine/kustomization.yaml", kustomization+blocks[2])
	if got := stops(); got != 330 {
		t.Errorf("with the patch the pod has %d s to end; the page says 330", got)
	}

	// A pod with the labels and annotations of the page gets the sidecar.
	var shown corev1.PodTemplateSpec
	if err := yaml.UnmarshalStrict([]byte(blocks[3]), &shown); err != nil {
		t.Fatal(err)
	}
	c := startReady(t, policies(t), nil)
	created, err := c.create(newPod(func(pod *corev1.Pod) { pod.Labels, pod.Annotations = shown.Labels, shown.Annotations }))
	if err != nil {
		t.Fatal(err)
	}
	sidecarOf(t, created.Spec)

	// One with the volume of the page keeps it, and one without gets what the page says.
	var own corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(blocks[4]), &own); err != nil {
		t.Fatal(err)
	}
	if own.Spec.SecurityContext == nil || own.Spec.SecurityContext.FSGroup == nil {
		t.Error("the sidecar, which is not root, could not write to the volume of the page")
	}
	for _, volumes := range [][]corev1.Volume{own.Spec.Volumes, nil} {
		created, err := c.create(newPod(annotated("redis-secret", ""), annotated("store", "file"), func(pod *corev1.Pod) { pod.Spec.Volumes = volumes }))
		if err != nil {
			t.Fatal(err)
		}
		switch data := volume(created.Spec, "caddy-dedup-data"); {
		case volumes != nil:
			wantEqual(t, "the volumes", created.Spec.Volumes, volumes)
		case data.EmptyDir == nil || data.EmptyDir.SizeLimit.String() != "1Gi":
			t.Errorf("without a volume of its own the pod gets %v", data)
		}
	}

	// The refusal that it shows is the policy's.
	_, err = c.create(newPod(annotated("upstream-port", "http")))
	refusal := regexp.MustCompile("```text\n(the annotation .*)\n```").FindStringSubmatch(whole)
	if refusal == nil || err == nil || !strings.HasSuffix(err.Error(), refusal[1]) {
		t.Errorf("the page shows %q; the policy says %v", refusal, err)
	}
}

// The table of annotations is that of the policies, with their defaults.
func TestAnnotationsOfTheKubernetesPage(t *testing.T) {
	_, whole := page(t, "sh")
	shown := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `caddy-dedup/([a-z-]+)` \\| `?([^`|;:]+)`?").FindAllStringSubmatch(whole, -1) {
		shown[row[1]] = strings.TrimSpace(row[2])
	}
	defaults := map[string]string{"upstream-port": "none", "redis-secret": "none", "providers": "none", "paths": "none", "verify": "none", "image": "that of the policy"}
	known := variableOf(t, "inject/validating.yaml", "known")
	for _, name := range regexp.MustCompile(`[a-z-]+`).FindAllString(known, -1) {
		if want, ok := defaults[name]; ok {
			if shown[name] != want {
				t.Errorf("%s: the page says %q; want %q", name, shown[name], want)
			}
			continue
		}
		for _, file := range []string{"mutating.yaml", "validating.yaml"} {
			if text := policies(t)[file]; !strings.Contains(text, fmt.Sprintf(`"caddy-dedup/%s"].orValue("%s")`, name, shown[name])) {
				t.Errorf("%s: the page says that the default is %q; %s has another one", name, shown[name], file)
			}
		}
		defaults[name] = shown[name]
	}
	if len(defaults) != len(shown) || len(shown) != 11 {
		t.Errorf("the page has %v; the policy knows %s", shown, known)
	}
}

func variableOf(t *testing.T, file, name string) string {
	t.Helper()
	for _, object := range manifest(t, file) {
		policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		at := slices.IndexFunc(policy.Spec.Variables, func(v admissionv1.Variable) bool { return v.Name == name })
		if at >= 0 {
			return policy.Spec.Variables[at].Expression
		}
	}
	t.Fatalf("%s has no variable %s", file, name)
	return ""
}
