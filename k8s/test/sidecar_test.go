package test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func inJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func isSidecar(c corev1.Container) bool { return c.Name == "dedup" }

// sidecarOf returns the sidecar of a pod.
func sidecarOf(t *testing.T, spec corev1.PodSpec) corev1.Container {
	t.Helper()
	at := slices.IndexFunc(spec.InitContainers, isSidecar)
	if at < 0 {
		t.Fatal("the pod has no sidecar")
	}
	return spec.InitContainers[at]
}

func volume(spec corev1.PodSpec, name string) corev1.VolumeSource {
	at := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if at < 0 {
		return corev1.VolumeSource{}
	}
	return spec.Volumes[at].VolumeSource
}

func variable(container corev1.Container, name string) corev1.EnvVar {
	at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	if at < 0 {
		return corev1.EnvVar{}
	}
	return container.Env[at]
}

// unlikeTheManifest says in what a sidecar is not that of sidecar.yaml: what keeps it
// confined, alive and within its memory is the same, whichever way it comes into a pod.
func unlikeTheManifest(t *testing.T, got corev1.Container) string {
	t.Helper()
	pod := the[*appsv1.Deployment](t, manifest(t, "sidecar.yaml")).Spec.Template.Spec
	manifest := sidecarOf(t, pod)
	// There, two of these are said once for all containers of the pod.
	security := manifest.SecurityContext.DeepCopy()
	security.RunAsNonRoot, security.SeccompProfile = pod.SecurityContext.RunAsNonRoot, pod.SecurityContext.SeccompProfile
	for what, c := range map[string][2]any{
		"restartPolicy":   {got.RestartPolicy, manifest.RestartPolicy},
		"securityContext": {got.SecurityContext, security},
		"resources":       {got.Resources, manifest.Resources},
		"startupProbe":    {byName(got, got.StartupProbe), manifest.StartupProbe},
		"readinessProbe":  {byName(got, got.ReadinessProbe), manifest.ReadinessProbe},
		"livenessProbe":   {byName(got, got.LivenessProbe), manifest.LivenessProbe},
		"AUTOMEMLIMIT":    {variable(got, "AUTOMEMLIMIT"), variable(manifest, "AUTOMEMLIMIT")},
		"XDG_DATA_HOME":   {variable(got, "XDG_DATA_HOME"), variable(manifest, "XDG_DATA_HOME")},
		"XDG_CONFIG_HOME": {variable(got, "XDG_CONFIG_HOME"), variable(manifest, "XDG_CONFIG_HOME")},
	} {
		if !equality.Semantic.DeepEqual(c[0], c[1]) {
			return fmt.Sprintf("%s is %s; want %s", what, inJSON(c[0]), inJSON(c[1]))
		}
	}
	return ""
}

// byName returns a probe with the name of the port that it asks.
func byName(container corev1.Container, probe *corev1.Probe) *corev1.Probe {
	if probe == nil || probe.HTTPGet == nil {
		return probe
	}
	probe = probe.DeepCopy()
	for _, port := range container.Ports {
		if probe.HTTPGet.Port == intstr.FromInt32(port.ContainerPort) {
			probe.HTTPGet.Port = intstr.FromString(port.Name)
		}
	}
	return probe
}

// wantFitting checks that the parts of a pod and what stands beside it fit each other.
func wantFitting(t *testing.T, spec corev1.PodSpec, objects []runtime.Object) {
	t.Helper()
	sidecar, application := sidecarOf(t, spec), spec.Containers[0]
	port := intstr.FromInt32(sidecar.Ports[0].ContainerPort)
	if got := the[*corev1.Service](t, objects).Spec.Ports[0].TargetPort; got != port {
		t.Errorf("the Service sends to %v; want the sidecar's %v", &got, &port)
	}
	// By number, because a name is looked for in its own container; and not at the
	// application's own port: the kubelet does not reach loopback.
	if probe := application.ReadinessProbe; probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path == "" || probe.HTTPGet.Port != port {
		t.Errorf("the application's readiness probe is %s; want one that asks the sidecar's %v", inJSON(probe), &port)
	}
	for _, mount := range sidecar.VolumeMounts {
		switch from := volume(spec, mount.Name); {
		case from == (corev1.VolumeSource{}):
			t.Errorf("at %s a volume is mounted that is not there", mount.MountPath)
		case from.PersistentVolumeClaim != nil && from.PersistentVolumeClaim.ClaimName != the[*corev1.PersistentVolumeClaim](t, objects).Name:
			t.Errorf("at %s the claim %s is mounted, which is not there", mount.MountPath, from.PersistentVolumeClaim.ClaimName)
		case from.Projected != nil:
			for _, source := range from.Projected.Sources {
				secretValue(t, objects, source.Secret.Name, source.Secret.Items[0].Key)
			}
		}
	}
	if !slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/data" && !m.ReadOnly }) {
		t.Error("the sidecar cannot write to /data, and its root file system is read-only")
	}
	environment := []string{}
	for _, v := range sidecar.Env {
		if v.ValueFrom != nil {
			v.Value = secretValue(t, objects, v.ValueFrom.SecretKeyRef.Name, v.ValueFrom.SecretKeyRef.Key)
		}
		if !strings.HasPrefix(v.Name, "XDG_") { // nothing of its directories is here; validate opens none
			environment = append(environment, v.Name+"="+v.Value)
		} else if v.Value != "/data" && !strings.HasPrefix(v.Value, "/data/") {
			t.Errorf("%s is %s; it can write to /data alone", v.Name, v.Value)
		}
	}
	if sidecar.Args[0] == "run" {
		wantCaddyfile(t, spec, the[*corev1.ConfigMap](t, objects), environment)
	}
}

// secretValue is a key of the Secret among the objects.
func secretValue(t *testing.T, objects []runtime.Object, name, key string) string {
	t.Helper()
	secret := the[*corev1.Secret](t, objects)
	value := secret.StringData[key] + string(secret.Data[key])
	if secret.Name != name || value == "" {
		t.Errorf("the key %s of the Secret %s is not there", key, name)
	}
	return value
}

// wantCaddyfile checks the Caddyfile of a pod: the sidecar runs it, the binary takes it with
// the sidecar's environment, and it has what the pod counts on.
func wantCaddyfile(t *testing.T, spec corev1.PodSpec, config *corev1.ConfigMap, environment []string) {
	t.Helper()
	sidecar, text := sidecarOf(t, spec), config.Data["Caddyfile"]
	at := slices.IndexFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/etc/caddy" })
	if at < 0 || volume(spec, sidecar.VolumeMounts[at].Name).ConfigMap.Name != config.Name || !slices.Contains(sidecar.Args, "/etc/caddy/Caddyfile") {
		t.Errorf("the sidecar runs %q, and the ConfigMap %s is not there", sidecar.Args, config.Name)
	}
	for _, want := range []string{
		"admin " + variable(sidecar, "CADDY_ADMIN").Value + "\n", // where `caddy-dedup keys` looks
		fmt.Sprintf("\n:%d {\n", sidecar.Ports[0].ContainerPort),
		fmt.Sprintf("\n:%d {\n\tdedup_health /live live\n\tdedup_health /ready\n\tmetrics /metrics\n", sidecar.Ports[1].ContainerPort),
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the Caddyfile does not have %q:\n%s", want, text)
		}
	}
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, environment, "validate", "--config", file).CombinedOutput(); err != nil {
		t.Errorf("the Caddyfile is not valid: %v\n%s\n%s", err, text, out)
	}
	// The pod is killed only after the application ended its runs and the sidecar stored them.
	needed := time.Duration(spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds) * time.Second
	settings := regexp.MustCompile(`(?m)^\s+(?:timeout|grace_period) (\S+)$`).FindAllStringSubmatch(text, -1)
	for _, setting := range settings {
		d, err := time.ParseDuration(setting[1])
		if err != nil {
			t.Fatal(err)
		}
		needed += d
	}
	if given := time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second; len(settings) != 2 || given <= needed {
		t.Errorf("ending takes up to %v, and the pod is killed after %v", needed, given)
	}
}
