package k8s

import (
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func sidecarDocuments(t *testing.T) map[string]map[string]any {
	t.Helper()
	objects, err := documents()
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestEveryDocumentIsThere(t *testing.T) {
	objects := sidecarDocuments(t)
	want := map[string]string{"Secret": "v1", "ConfigMap": "v1", "Deployment": "apps/v1", "Service": "v1", "PodDisruptionBudget": "policy/v1"}
	for kind, version := range want {
		if at(objects[kind], "apiVersion") != version || at(objects[kind], "metadata", "name") == nil {
			t.Errorf("%s: it has no name, or its version is not %s", kind, version)
		}
	}
	if len(objects) != len(want) {
		t.Errorf("%d kinds; want %d", len(objects), len(want))
	}
}

// pod returns the pod's specification and the sidecar's container in it.
func pod(t *testing.T) (spec, container any) {
	t.Helper()
	spec = at(sidecarDocuments(t)["Deployment"], "spec", "template", "spec")
	container = at(spec, "initContainers", 0)
	if at(container, "name") != "dedup" {
		t.Fatalf("the first init container is %v; want dedup", at(container, "name"))
	}
	return spec, container
}

func TestSidecarIsNativeAndConfined(t *testing.T) {
	spec, container := pod(t)
	for _, c := range []struct {
		node any
		path []any
		want any
	}{
		{container, []any{"restartPolicy"}, "Always"},
		{spec, []any{"securityContext", "runAsNonRoot"}, true},
		{spec, []any{"automountServiceAccountToken"}, false},
		{container, []any{"securityContext", "runAsUser"}, 65532},
		{container, []any{"securityContext", "readOnlyRootFilesystem"}, true},
		{container, []any{"securityContext", "allowPrivilegeEscalation"}, false},
		{container, []any{"securityContext", "capabilities", "drop"}, []any{"ALL"}},
	} {
		if got := at(c.node, c.path...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v is %v; want %v", c.path, got, c.want)
		}
	}
	for _, amount := range []string{"requests", "limits"} {
		if at(container, "resources", amount, "memory") == nil {
			t.Errorf("the sidecar has no memory among its %s", amount)
		}
	}
}

// The kubelet asks the sidecar itself, at a port that no Service has, and only the start
// depends on the store.
func TestProbesAskTheSidecar(t *testing.T) {
	_, container := pod(t)
	caddyfile, err := Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	port, name := at(container, "ports", 1, "containerPort"), at(container, "ports", 1, "name")
	_, site, found := strings.Cut(caddyfile, fmt.Sprintf(":%v {", port))
	if !found || port == at(sidecarDocuments(t)["Service"], "spec", "ports", 0, "targetPort") {
		t.Fatalf("the probes ask port %v, which the Caddyfile does not serve, or which the Service has", port)
	}
	for probe, want := range map[string][]string{
		"startupProbe":   {"/ready", "dedup_health /ready\n"},
		"readinessProbe": {"/live", "dedup_health /live live\n"},
		"livenessProbe":  {"/live", "dedup_health /live live\n"},
	} {
		get := at(container, probe, "httpGet")
		if at(get, "port") != name || at(get, "path") != want[0] || !strings.Contains(site, want[1]) {
			t.Errorf("%s asks %v; want %s at %v, and %q in the Caddyfile", probe, get, want[0], name, want[1])
		}
	}
}

// caddy-dedup keys finds the admin API of the Caddyfile in the pod without a flag.
func TestKeysCommandFindsTheAdminAPI(t *testing.T) {
	_, container := pod(t)
	caddyfile, err := Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	address := variables(container)["CADDY_ADMIN"]
	if !strings.Contains(caddyfile, "admin "+address+"\n") {
		t.Errorf("CADDY_ADMIN is %q, which the Caddyfile does not have", address)
	}
}

func TestServiceReachesTheSidecar(t *testing.T) {
	_, container := pod(t)
	objects := sidecarDocuments(t)
	port := at(container, "ports", 0, "containerPort")
	if got := at(objects["Service"], "spec", "ports", 0, "targetPort"); got != port || port != 8080 {
		t.Errorf("the Service sends to port %v; the sidecar's is %v", got, port)
	}
	selector := at(objects["Service"], "spec", "selector")
	for _, labels := range []any{
		at(objects["Deployment"], "spec", "selector", "matchLabels"),
		at(objects["Deployment"], "spec", "template", "metadata", "labels"),
	} {
		if selector == nil || !reflect.DeepEqual(labels, selector) {
			t.Errorf("the Service selects %v; the Deployment has %v", selector, labels)
		}
	}
}

// variables returns the container's environment: the value, or the Secret and
// the key that it comes from.
func variables(container any) map[string]string {
	all, _ := at(container, "env").([]any)
	values := map[string]string{}
	for _, variable := range all {
		name, _ := at(variable, "name").(string)
		value, _ := at(variable, "value").(string)
		if value == "" {
			secret, _ := at(variable, "valueFrom", "secretKeyRef", "name").(string)
			key, _ := at(variable, "valueFrom", "secretKeyRef", "key").(string)
			value = "secret " + secret + " " + key
		}
		values[name] = value
	}
	return values
}

// mounts returns the kind of volume that is mounted at each path.
func mounts(t *testing.T, spec, container any) map[string]string {
	t.Helper()
	kinds := map[any]string{}
	volumes, _ := at(spec, "volumes").([]any)
	for _, volume := range volumes {
		switch {
		case at(volume, "configMap", "name") != nil:
			kinds[at(volume, "name")] = "configMap " + at(volume, "configMap", "name").(string)
		case at(volume, "emptyDir") != nil:
			kinds[at(volume, "name")] = "emptyDir"
		}
	}
	paths := map[string]string{}
	mounts, _ := at(container, "volumeMounts").([]any)
	for _, mount := range mounts {
		kind := kinds[at(mount, "name")]
		if kind == "" {
			t.Errorf("volume %v is mounted and is not there", at(mount, "name"))
		}
		paths[at(mount, "mountPath").(string)] = kind
	}
	return paths
}

func TestConfigurationReachesTheSidecar(t *testing.T) {
	spec, container := pod(t)
	objects := sidecarDocuments(t)
	mounted := mounts(t, spec, container)

	args, _ := at(container, "args").([]any)
	file, _ := args[len(args)-1].(string)
	configMap := "configMap " + at(objects["ConfigMap"], "metadata", "name").(string)
	if mounted[path.Dir(file)] != configMap || at(objects["ConfigMap"], "data", path.Base(file)) == nil {
		t.Errorf("the sidecar runs %s, and mounted there is %q; want %q", file, mounted[path.Dir(file)], configMap)
	}

	environment := variables(container)
	for _, home := range []string{"XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		written := slices.ContainsFunc([]string{environment[home], path.Dir(environment[home])}, func(folder string) bool {
			return mounted[folder] == "emptyDir"
		})
		if !written {
			t.Errorf("%s is %q, which is in no emptyDir, and the root file system is read-only", home, environment[home])
		}
	}

	caddyfile, err := Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	secret := "secret " + at(objects["Secret"], "metadata", "name").(string) + " redis-url"
	if environment["REDIS_URL"] != secret || at(objects["Secret"], "stringData", "redis-url") == nil {
		t.Errorf("REDIS_URL is %q; want %q", environment["REDIS_URL"], secret)
	}
	used := regexp.MustCompile(`\{env\.(\w+)\}`).FindAllStringSubmatch(caddyfile, -1)
	if len(used) == 0 {
		t.Error("the Caddyfile takes no address from the environment")
	}
	for _, name := range used {
		if environment[name[1]] == "" {
			t.Errorf("the Caddyfile uses {env.%s}, which the sidecar does not have", name[1])
		}
	}
}

// The pod is killed only after the application ended its runs and the sidecar
// stored them.
func TestStopTimesAddUp(t *testing.T) {
	spec, _ := pod(t)
	caddyfile, err := Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	setting := func(name string) time.Duration {
		for line := range strings.Lines(caddyfile) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
				d, err := time.ParseDuration(value)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				return d
			}
		}
		t.Fatalf("the Caddyfile has no %s", name)
		return 0
	}
	seconds := func(path ...any) time.Duration {
		n, ok := at(spec, path...).(int)
		if !ok {
			t.Fatalf("the pod has no %v", path)
		}
		return time.Duration(n) * time.Second
	}
	needed := seconds("containers", 0, "lifecycle", "preStop", "sleep", "seconds") + setting("timeout") + setting("grace_period")
	if given := seconds("terminationGracePeriodSeconds"); needed >= given {
		t.Errorf("ending takes up to %v, and the pod is killed after %v", needed, given)
	}
}
