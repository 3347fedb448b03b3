package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func equal(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if !equal(got, want) {
		t.Errorf("%s: got %s; want %s", what, inJSON(got), inJSON(want))
	}
}

func inJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// wantSameSidecar compares a sidecar with that of sidecar.yaml, which is explained there
// line by line: what keeps it confined, alive and within its memory is the same, whichever
// way it comes into the pod.
func wantSameSidecar(t *testing.T, got corev1.Container) {
	t.Helper()
	if problem := unlikeTheManifest(podOfTheManifest(t), got); problem != "" {
		t.Error(problem)
	}
}

func podOfTheManifest(t *testing.T) corev1.PodSpec {
	t.Helper()
	return the[*appsv1.Deployment](t, manifest(t, "sidecar.yaml")).Spec.Template.Spec
}

// unlikeTheManifest says in what a sidecar is not that of the pod of sidecar.yaml.
func unlikeTheManifest(pod corev1.PodSpec, got corev1.Container) string {
	manifest := pod.InitContainers[slices.IndexFunc(pod.InitContainers, isSidecar)]
	if got.RestartPolicy == nil || *got.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		return "it is no native sidecar"
	}
	// There, two of these are said once for all containers of the pod.
	want := manifest.SecurityContext.DeepCopy()
	want.RunAsNonRoot, want.SeccompProfile = pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.SeccompProfile
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"securityContext", got.SecurityContext, want},
		{"the ports' names", portNames(got), portNames(manifest)},
		{"resources", got.Resources, manifest.Resources},
		{"startupProbe", byNumber(got, got.StartupProbe), byNumber(manifest, manifest.StartupProbe)},
		{"readinessProbe", byNumber(got, got.ReadinessProbe), byNumber(manifest, manifest.ReadinessProbe)},
		{"livenessProbe", byNumber(got, got.LivenessProbe), byNumber(manifest, manifest.LivenessProbe)},
		{"AUTOMEMLIMIT", variable(got, "AUTOMEMLIMIT"), variable(manifest, "AUTOMEMLIMIT")},
		{"XDG_DATA_HOME", variable(got, "XDG_DATA_HOME"), variable(manifest, "XDG_DATA_HOME")},
		{"XDG_CONFIG_HOME", variable(got, "XDG_CONFIG_HOME"), variable(manifest, "XDG_CONFIG_HOME")},
	} {
		if reflect.ValueOf(c.got).IsZero() || !equal(c.got, c.want) {
			return c.what + " is " + inJSON(c.got) + "; want " + inJSON(c.want)
		}
	}
	return ""
}

// byNumber returns a probe of which the port is its place among the container's, so that
// probes at other ports, and by other names, compare.
func byNumber(container corev1.Container, probe *corev1.Probe) *corev1.Probe {
	if probe == nil || probe.HTTPGet == nil {
		return nil
	}
	probe = probe.DeepCopy()
	at := slices.IndexFunc(container.Ports, func(p corev1.ContainerPort) bool {
		asked := probe.HTTPGet.Port
		return asked == intstr.FromString(p.Name) || asked == intstr.FromInt32(p.ContainerPort)
	})
	if at < 0 {
		return nil
	}
	probe.HTTPGet.Port = intstr.FromInt(at)
	return probe
}

func portNames(container corev1.Container) (names []string) {
	for _, port := range container.Ports {
		names = append(names, port.Name)
	}
	return names
}

func variable(container corev1.Container, name string) *corev1.EnvVar {
	for _, v := range container.Env {
		if v.Name == name {
			return &v
		}
	}
	return nil
}

func volume(spec corev1.PodSpec, name string) corev1.VolumeSource {
	for _, v := range spec.Volumes {
		if v.Name == name {
			return v.VolumeSource
		}
	}
	return corev1.VolumeSource{}
}

func wantMounted(t *testing.T, spec corev1.PodSpec, container corev1.Container, path, name string) {
	t.Helper()
	mounted := slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path && m.Name == name })
	if !mounted || volume(spec, name) == (corev1.VolumeSource{}) {
		t.Errorf("%s is not mounted at %s, or is not there", name, path)
	}
}

// values returns the environment that a container gets, with what Secrets of the objects
// say.
func values(t *testing.T, container corev1.Container, objects []runtime.Object) []string {
	t.Helper()
	var environment []string
	for _, v := range container.Env {
		value := v.Value
		if v.ValueFrom != nil {
			secret, key := the[*corev1.Secret](t, objects), v.ValueFrom.SecretKeyRef.Key
			if secret.Name != v.ValueFrom.SecretKeyRef.Name {
				t.Errorf("%s comes from the Secret %s, which is not there", v.Name, v.ValueFrom.SecretKeyRef.Name)
			}
			if value = string(secret.Data[key]); value == "" {
				value = secret.StringData[key]
			}
		}
		environment = append(environment, v.Name+"="+value)
	}
	return environment
}

// wantValid lets the built binary read a Caddyfile, with the environment of its container.
func wantValid(t *testing.T, caddyfile string, environment []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	// Nothing of the container's directories is here; validate opens none of them.
	environment = slices.DeleteFunc(slices.Clone(environment), func(v string) bool { return len(v) > 3 && v[:4] == "XDG_" })
	if out, err := command(t, environment, "validate", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("the Caddyfile is not valid: %v\n%s\n%s", err, caddyfile, out)
	}
}

func TestCaddyfileOfTheManifest(t *testing.T) {
	objects := manifest(t, "sidecar.yaml")
	sidecar := sidecarOf(t, the[*appsv1.Deployment](t, objects).Spec.Template.Spec)
	wantValid(t, the[*corev1.ConfigMap](t, objects).Data["Caddyfile"], values(t, sidecar, objects))
}
