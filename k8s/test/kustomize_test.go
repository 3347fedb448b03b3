package test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// manifestsInMemory is a file system with the manifests of ../ at /k8s.
func manifestsInMemory(t *testing.T) filesys.FileSystem {
	t.Helper()
	disk, memory := filesys.MakeFsOnDisk(), filesys.MakeFsInMemory()
	for _, pattern := range []string{"*/*", "*/*/*"} {
		files, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if disk.IsDir(file) || filepath.Ext(file) == ".go" {
				continue
			}
			text, err := disk.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := memory.WriteFile("/k8s/"+strings.TrimPrefix(filepath.ToSlash(file), "../"), text); err != nil {
				t.Fatal(err)
			}
		}
	}
	return memory
}

// kustomize builds a directory, with what `kubectl apply -k` allows.
func kustomize(t *testing.T, files filesys.FileSystem, directory string) []runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, directory)
	if err != nil {
		t.Fatalf("%s: %v", directory, err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(text)
	if err != nil {
		t.Fatalf("%s: %v\n%s", directory, err, text)
	}
	return objects
}

// write adds a file to those in memory.
func write(t *testing.T, files filesys.FileSystem, path, text string) {
	t.Helper()
	if err := files.WriteFile(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func TestKustomizations(t *testing.T) {
	files := manifestsInMemory(t)
	if options := krusty.MakeDefaultOptions(); options.LoadRestrictions != types.LoadRestrictionsRootOnly {
		t.Error("files outside of a kustomization can be read, which kubectl does not allow")
	}
	before := kustomize(t, files, "/k8s/examples/payments")
	for _, example := range []string{"redis", "file", "webhooks"} {
		t.Run(example, func(t *testing.T) {
			objects := kustomize(t, files, "/k8s/examples/"+example)
			deployment, was := the[*appsv1.Deployment](t, objects), the[*appsv1.Deployment](t, before)
			spec := deployment.Spec.Template.Spec
			sidecar := sidecarOf(t, spec)
			wantSameSidecar(t, sidecar)
			if !strings.HasPrefix(sidecar.Image, "registry.example.com/caddy-dedup:v") {
				t.Errorf("the image is %q; want that of the kustomization", sidecar.Image)
			}

			// What was there is there still.
			others := slices.DeleteFunc(slices.Clone(spec.InitContainers), isSidecar)
			wantEqual(t, "the other init containers", others, was.Spec.Template.Spec.InitContainers)
			// But for what a service does that goes behind the sidecar: it listens on
			// loopback, and its probe asks the sidecar.
			asksTheSidecar(t, spec.Containers[0], sidecar)
			upstream := "127.0.0.1:" + variable(sidecar, "UPSTREAM_PORT").Value
			wantEqual(t, "the application's arguments", spec.Containers[0].Args, []string{"serve", "--listen", upstream})
			containers := was.DeepCopy().Spec.Template.Spec.Containers
			containers[0].Args, containers[0].ReadinessProbe = spec.Containers[0].Args, spec.Containers[0].ReadinessProbe
			wantEqual(t, "the containers", spec.Containers, containers)
			volumes := slices.DeleteFunc(slices.Clone(spec.Volumes), func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, "caddy-dedup-") })
			wantEqual(t, "the other volumes", volumes, was.Spec.Template.Spec.Volumes)
			wantEqual(t, "the pods' labels", deployment.Spec.Template.Labels, was.Spec.Template.Labels)

			service := the[*corev1.Service](t, objects)
			if got := service.Spec.Ports[0].TargetPort.IntValue(); got != 8080 || service.Spec.Ports[0].Port != 80 {
				t.Errorf("the Service sends from %d to %d; want 80 to 8080", service.Spec.Ports[0].Port, got)
			}
			config := the[*corev1.ConfigMap](t, objects)
			if !strings.HasPrefix(config.Name, "caddy-dedup-") || volume(spec, "caddy-dedup-config").ConfigMap.Name != config.Name {
				t.Errorf("the ConfigMap is %q, and the pod has %v", config.Name, volume(spec, "caddy-dedup-config").ConfigMap)
			}
			wantMounted(t, spec, sidecar, "/etc/caddy", "caddy-dedup-config")
			wantMounted(t, spec, sidecar, "/data", "caddy-dedup-data")
			wantValid(t, config.Data["Caddyfile"], values(t, sidecar, objects))
		})
	}
}

func TestStoreOfTheComponents(t *testing.T) {
	files := manifestsInMemory(t)

	objects := kustomize(t, files, "/k8s/examples/redis")
	spec := the[*appsv1.Deployment](t, objects).Spec.Template.Spec
	secret := the[*corev1.Secret](t, objects)
	source := variable(sidecarOf(t, spec), "REDIS_URL")
	if source == nil || source.ValueFrom.SecretKeyRef.Name != secret.Name || secret.Data[source.ValueFrom.SecretKeyRef.Key] == nil {
		t.Errorf("REDIS_URL is %v; want the key of the Secret %s", source, secret.Name)
	}
	if volume(spec, "caddy-dedup-data").EmptyDir == nil {
		t.Error("with Redis the data has a volume that outlives the pod")
	}

	objects = kustomize(t, files, "/k8s/examples/file")
	deployment := the[*appsv1.Deployment](t, objects)
	spec = deployment.Spec.Template.Spec
	if *deployment.Spec.Replicas != 1 || deployment.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType || deployment.Spec.Strategy.RollingUpdate != nil {
		t.Errorf("%d replicas with the strategy %v; a file store is for one at a time", *deployment.Spec.Replicas, deployment.Spec.Strategy)
	}
	claim := the[*corev1.PersistentVolumeClaim](t, objects)
	data := volume(spec, "caddy-dedup-data")
	if data.PersistentVolumeClaim == nil || data.PersistentVolumeClaim.ClaimName != claim.Name || data.EmptyDir != nil {
		t.Errorf("the data is in %+v; want the claim %s", data, claim.Name)
	}
	if variable(sidecarOf(t, spec), "REDIS_URL") != nil {
		t.Error("the file store has a REDIS_URL")
	}
	if spec.SecurityContext == nil || *spec.SecurityContext.FSGroup != *sidecarOf(t, spec).SecurityContext.RunAsGroup {
		t.Error("the volume does not belong to the sidecar's group, which could not write to it")
	}
}

// A change rolls the pods: it has another name, and the pods' template with it.
func TestChangesRollThePods(t *testing.T) {
	template := func(files filesys.FileSystem, example string) corev1.PodTemplateSpec {
		return the[*appsv1.Deployment](t, kustomize(t, files, "/k8s/examples/"+example)).Spec.Template
	}
	for name, change := range map[string]struct{ example, file, old, new string }{
		"the Caddyfile of the component":        {"redis", "component/Caddyfile", "timeout 30s", "timeout 20s"},
		"the Caddyfile of the file store":       {"file", "component/file/Caddyfile", "timeout 30s", "timeout 20s"},
		"a Caddyfile of one's own":              {"webhooks", "examples/webhooks/caddyfile.yaml", "timeout 30s", "timeout 20s"},
		"the Secret that a generator makes":     {"redis", "examples/redis/kustomization.yaml", "redis://redis:6379", "redis://other:6379"},
		"the port of the application":           {"webhooks", "examples/webhooks/port.yaml", `"5000"`, `"5001"`},
		"the image, by the kustomization's own": {"redis", "examples/redis/kustomization.yaml", "v0.1.0", "v0.2.0"},
	} {
		t.Run(name, func(t *testing.T) {
			files := manifestsInMemory(t)
			before := template(files, change.example)
			text, err := files.ReadFile("/k8s/" + change.file)
			if err != nil || !strings.Contains(string(text), change.old) {
				t.Fatalf("%s does not have %q (%v)", change.file, change.old, err)
			}
			write(t, files, "/k8s/"+change.file, strings.ReplaceAll(string(text), change.old, change.new))
			if after := template(files, change.example); equal(before, after) {
				t.Error("the pods' template is the same")
			}
		})
	}
}

// What has the label stays as it is, and a StatefulSet gets the sidecar, too.
func TestComponentLeavesOutWhatIsLabelled(t *testing.T) {
	files := manifestsInMemory(t)
	write(t, files, "/k8s/mine/kustomization.yaml", `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [all.yaml]
components: [../component]
`)
	const object = `---
apiVersion: apps/v1
kind: KIND
metadata:
  name: NAME
  labels: {LABELS}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      containers: [{name: NAME, image: NAME}]
---
apiVersion: v1
kind: Service
metadata:
  name: NAME
  labels: {LABELS}
spec:
  ports: [{port: 80, targetPort: 6379}]
`
	all := strings.NewReplacer("KIND", "StatefulSet", "NAME", "app", "LABELS", "").Replace(object) +
		strings.NewReplacer("KIND", "Deployment", "NAME", "redis", "LABELS", `caddy-dedup/inject: "false"`).Replace(object)
	write(t, files, "/k8s/mine/all.yaml", all)
	objects := kustomize(t, files, "/k8s/mine")
	if redis := the[*appsv1.Deployment](t, objects); len(redis.Spec.Template.Spec.InitContainers) != 0 {
		t.Error("the Deployment with the label \"false\" got the sidecar")
	}
	sidecarOf(t, the[*appsv1.StatefulSet](t, objects).Spec.Template.Spec)
	for _, object := range objects {
		service, ok := object.(*corev1.Service)
		if want := map[string]int{"app": 8080, "redis": 6379}; ok && service.Spec.Ports[0].TargetPort.IntValue() != want[service.Name] {
			t.Errorf("the Service %s sends to %v; want %d", service.Name, service.Spec.Ports[0].TargetPort, want[service.Name])
		}
	}
}
