package test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// kustomize builds a directory with the tool's own command.
func kustomize(t *testing.T, directory string) []runtime.Object {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), "go", "tool", "kustomize", "build", directory).Output()
	if err != nil {
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			t.Logf("%s", failed.Stderr)
		}
		t.Fatalf("%s: %v", directory, err)
	}
	objects, err := decode(text)
	if err != nil {
		t.Fatalf("%s: %v\n%s", directory, err, text)
	}
	return objects
}

func TestKustomizations(t *testing.T) {
	for _, example := range []string{"redis", "webhooks", "recipe", "file"} {
		t.Run(example, func(t *testing.T) {
			objects := kustomize(t, "../examples/"+example)
			deployment := the[*appsv1.Deployment](t, objects)
			spec := deployment.Spec.Template.Spec
			sidecar := sidecarOf(t, spec)
			wantFitting(t, spec, objects)
			if problem := unlikeTheManifest(t, sidecar); problem != "" {
				t.Error(problem)
			}
			if want := "127.0.0.1:" + variable(sidecar, "UPSTREAM_PORT").Value; spec.Containers[0].Args[2] != want {
				t.Errorf("the application's arguments are %q; the sidecar asks it at %s", spec.Containers[0].Args, want)
			}
			// With another Caddyfile it has another name, so that the pods are rolled.
			if config := the[*corev1.ConfigMap](t, objects); !strings.HasPrefix(config.Name, "caddy-dedup-") {
				t.Errorf("the ConfigMap is %s, whatever is in it", config.Name)
			}
			if example != "file" {
				return
			}
			// A file store is for one process at a time, and belongs to the sidecar's group.
			if *deployment.Spec.Replicas != 1 || deployment.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType || deployment.Spec.Strategy.RollingUpdate != nil {
				t.Errorf("%d replicas with the strategy %s", *deployment.Spec.Replicas, inJSON(deployment.Spec.Strategy))
			}
			if volume(spec, "caddy-dedup-data").PersistentVolumeClaim == nil || *spec.SecurityContext.FSGroup != *sidecar.SecurityContext.RunAsGroup {
				t.Errorf("the data is in %s, which belongs to the group %d", inJSON(volume(spec, "caddy-dedup-data")), *spec.SecurityContext.FSGroup)
			}
		})
	}
}

// What has the label stays as it is, and a StatefulSet gets the sidecar, too.
func TestComponentLeavesOutWhatIsLabelled(t *testing.T) {
	directory := t.TempDir()
	component, err := filepath.Abs("../component")
	if err != nil {
		t.Fatal(err)
	}
	if component, err = filepath.Rel(directory, component); err != nil {
		t.Fatal(err)
	}
	const object = `---
apiVersion: apps/v1
kind: KIND
metadata: {name: NAME, labels: {LABEL}}
spec: {selector: {matchLabels: {app: NAME}}, template: {metadata: {labels: {app: NAME}}, spec: {containers: [{name: NAME, image: NAME}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: NAME, labels: {LABEL}}
spec: {ports: [{port: 80, targetPort: 6379}]}
`
	for file, text := range map[string]string{
		"kustomization.yaml": "resources: [all.yaml]\ncomponents: [" + filepath.ToSlash(component) + "]\n",
		"all.yaml": strings.NewReplacer("KIND", "StatefulSet", "NAME", "app", "LABEL", "").Replace(object) +
			strings.NewReplacer("KIND", "Deployment", "NAME", "redis", "LABEL", `caddy-dedup/inject: "false"`).Replace(object),
	} {
		if err := os.WriteFile(filepath.Join(directory, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects := kustomize(t, directory)
	sidecarOf(t, the[*appsv1.StatefulSet](t, objects).Spec.Template.Spec)
	if redis := the[*appsv1.Deployment](t, objects); len(redis.Spec.Template.Spec.InitContainers) != 0 {
		t.Error(`the Deployment with the label "false" has the sidecar`)
	}
	for _, object := range objects {
		service, ok := object.(*corev1.Service)
		if want := map[string]int{"app": 8080, "redis": 6379}; ok && service.Spec.Ports[0].TargetPort.IntValue() != want[service.Name] {
			t.Errorf("the Service %s sends to %v; want %d", service.Name, service.Spec.Ports[0].TargetPort, want[service.Name])
		}
	}
}
