package test

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// request is a pod that somebody creates, and what has to become of it.
type request struct {
	pod    *corev1.Pod
	args   string // of its sidecar
	reason string // in the message with which it is refused
}

// edit changes the pod of a request before it is sent.
type edit func(*corev1.Pod)

// annotated sets annotations, each a name and a value, or removes one if its value is empty.
func annotated(pairs ...string) edit {
	return func(pod *corev1.Pod) {
		for i := 0; i < len(pairs); i += 2 {
			if pod.Annotations["caddy-dedup/"+pairs[i]] = pairs[i+1]; pairs[i+1] == "" {
				delete(pod.Annotations, "caddy-dedup/"+pairs[i])
			}
		}
	}
}

// labelled sets the label, or removes it if it is empty.
func labelled(value string) edit {
	return func(pod *corev1.Pod) {
		if pod.Labels["caddy-dedup/inject"] = value; value == "" {
			delete(pod.Labels, "caddy-dedup/inject")
		}
	}
}

func withContainer(name string, ports ...int32) edit {
	return func(pod *corev1.Pod) {
		container := corev1.Container{Name: name, Image: name}
		for _, port := range ports {
			container.Ports = append(container.Ports, corev1.ContainerPort{ContainerPort: port})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
}

func withInitContainer(name string) edit {
	return func(pod *corev1.Pod) {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: name})
	}
}

func withVolume(name string, source corev1.VolumeSource) edit {
	return func(pod *corev1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
}

// newPod returns a pod as a ReplicaSet makes it, with the least that injection needs.
func newPod(edits ...edit) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: "payments-5d8f-", Namespace: "shop",
			Labels:      map[string]string{"app": "payments", "caddy-dedup/inject": "true"},
			Annotations: map[string]string{"caddy-dedup/upstream-port": "3000", "caddy-dedup/redis-secret": "payments-redis", "prometheus.io/scrape": "true"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "payments", Image: "payments", Ports: []corev1.ContainerPort{{ContainerPort: 3000}}}}},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

func injected() map[string]request {
	const usual = "proxy --from :8080 --to localhost:3000 --health :8081 --dedup timeout 30s --redis {env.REDIS_URL}"
	inFile := annotated("store", "file", "redis-secret", "")
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "keys"}}
	all := map[string]request{
		"the least":                    {pod: newPod(), args: usual},
		"init containers and a volume": {pod: newPod(withInitContainer("migrate"), withVolume("cache", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), args: usual},
		"empty lists":                  {pod: newPod(func(p *corev1.Pod) { p.Spec.InitContainers, p.Spec.Volumes = []corev1.Container{}, []corev1.Volume{} }), args: usual},
		"other ports": {
			pod:  newPod(annotated("upstream-port", "8080", "port", "9000", "health-port", "9001"), withContainer("helper", 8080)),
			args: "proxy --from :9000 --to localhost:8080 --health :9001 --dedup timeout 30s --redis {env.REDIS_URL}",
		},
		"the first and the last port": {
			pod:  newPod(annotated("upstream-port", "1", "port", "1024", "health-port", "65535")),
			args: "proxy --from :1024 --to localhost:1 --health :65535 --dedup timeout 30s --redis {env.REDIS_URL}",
		},
		"a file on a volume of one's own": {
			pod:  newPod(inFile, withVolume("caddy-dedup-data", claim)),
			args: "proxy --from :8080 --to localhost:3000 --health :8081 --dedup timeout 30s --file /data/dedup",
		},
		"all at once": {
			pod: newPod(inFile, annotated("providers", "github", "paths", "/webhooks/*", "verify", "github=w/github", "timeout", "5m", "on-unknown", "hold")),
			args: "proxy --from :8080 --to localhost:3000 --health :8081 --provider=github --path=/webhooks/*" +
				" --verify=github={file./secrets/github/w/github} --dedup timeout 5m --dedup on_unknown hold --file /data/dedup",
		},
	}
	withConfig := annotated("config-map", "payments-dedup-v1")
	all["a Caddyfile"] = request{pod: newPod(withConfig), args: "run --config /etc/caddy/Caddyfile"}
	all["a Caddyfile with a file, and other ports"] = request{
		pod:  newPod(withConfig, inFile, annotated("port", "9000", "health-port", "9001"), withVolume("caddy-dedup-data", claim)),
		args: "run --config /etc/caddy/Caddyfile",
	}
	for _, c := range []struct {
		annotations []string
		flags       string // in place of "--dedup timeout 30s"
	}{
		{[]string{"image", "example.com/dedup:v1", "store", "redis", "on-unknown", "release", "providers", " , "}, "--dedup timeout 30s"},
		{[]string{"timeout", "99999h"}, "--dedup timeout 99999h"},
		{[]string{"timeout", "1s", "on-unknown", "hold"}, "--dedup timeout 1s --dedup on_unknown hold"},
		{[]string{"providers", "github, stripe,twilio"}, "--provider=github --provider=stripe --provider=twilio --dedup timeout 30s"},
		{[]string{"providers", "github", "paths", "/webhooks/*, /hook"}, "--provider=github --path=/webhooks/* --path=/hook --dedup timeout 30s"},
		{
			[]string{"providers", "github,stripe", "paths", "/w/*", "verify", "stripe=w/stripe, github=w/github,github=old.w/GITHUB_SECRET"},
			"--provider=github --provider=stripe --path=/w/* --verify=stripe={file./secrets/stripe/w/stripe}" +
				" --verify=github={file./secrets/github/w/github} --verify=github={file./secrets/github/old.w/GITHUB_SECRET} --dedup timeout 30s",
		},
		{ // their deliveries look the same; their signatures tell them apart
			[]string{"providers", "openai,replicate", "paths", "/w/*", "verify", "openai=w/a,replicate=w/a"},
			"--provider=openai --provider=replicate --path=/w/* --verify=openai={file./secrets/openai/w/a} --verify=replicate={file./secrets/replicate/w/a} --dedup timeout 30s",
		},
	} {
		all[strings.Join(c.annotations, " ")] = request{pod: newPod(annotated(c.annotations...)), args: strings.Replace(usual, "--dedup timeout 30s", c.flags, 1)}
	}
	return all
}

func untouched() map[string]*corev1.Pod {
	without := annotated("upstream-port", "", "redis-secret", "")
	return map[string]*corev1.Pod{
		"no label and no annotations":     newPod(labelled(""), without),
		"no labels and annotations":       newPod(func(p *corev1.Pod) { p.Labels, p.Annotations = nil, nil }),
		"the label false, and nonsense":   newPod(labelled("false"), annotated("upstream-port", "x")),
		"annotations of others":           newPod(labelled(""), without, func(p *corev1.Pod) { p.Annotations["caddy-dedupe/x"] = "y" }),
		"an init container of that name":  newPod(withInitContainer("dedup")),
		"a container of that name":        newPod(withContainer("dedup", 8080, 8081)),
		"no label, and the ports in use":  newPod(labelled(""), without, withContainer("helper", 8080)),
		"no label, and a container dedup": newPod(labelled(""), without, withInitContainer("dedup")),
	}
}

func refused() map[string]request {
	all := map[string]request{
		"annotations, and no label": {pod: newPod(labelled("")), reason: "caddy-dedup/redis-secret, caddy-dedup/upstream-port and not the label caddy-dedup/inject"},
		"an empty label":            {pod: newPod(func(p *corev1.Pod) { p.Labels["caddy-dedup/inject"] = "" }), reason: `the label caddy-dedup/inject is ""`},
		"the sidecar's port":        {pod: newPod(withContainer("helper", 9, 8080)), reason: "a container of the pod has the port 8080, which is the sidecar's"},
		"the probes' port":          {pod: newPod(withContainer("helper", 8081)), reason: "a container of the pod has the port 8081, which is that of the sidecar's probes"},
		"an empty config-map":       {pod: newPod(func(p *corev1.Pod) { p.Annotations["caddy-dedup/config-map"] = "" }), reason: `caddy-dedup/config-map is ""`},
		"a verify of nothing": {pod: newPod(annotated("verify", " , ", "paths", "/w/*")),
			reason: "caddy-dedup/verify has something that is not a provider, a Secret and its key"},
	}
	for _, value := range []string{"yes", "True"} {
		all[value] = request{pod: newPod(labelled(value)), reason: fmt.Sprintf("the label caddy-dedup/inject is %q; write \"true\"", value)}
	}
	for reason, pairs := range map[string][]string{
		"the annotation caddy-dedup/upstream is not known; those of caddy-dedup are caddy-dedup/upstream-port": {"upstream", "3000"},
		`caddy-dedup/upstream-port is missing; write the port on which the application listens`:                {"upstream-port", ""},
		"caddy-dedup/upstream-port is 8080, which is the sidecar's own port":                                   {"upstream-port", "8080"},
		"caddy-dedup/upstream-port is 9000, which is the sidecar's own port":                                   {"upstream-port", "9000", "port", "9000"},
		"the port of the sidecar's probes is 8081, which is also the sidecar's own":                            {"port", "8081"},
		"the port of the sidecar's probes is 8081, which is also the application's":                            {"upstream-port", "8081"},
		`caddy-dedup/providers names "gitbub"; known are adyen`:                                                {"providers", "github,gitbub"},
		`caddy-dedup/providers names "GitHub"; known are`:                                                      {"providers", "GitHub"},
		`caddy-dedup/providers names "github stripe"; known are`:                                               {"providers", "github stripe"},
		`caddy-dedup/providers is "github,github"; name each provider once`:                                    {"providers", "github,github"},
		`is "github,gitea,forgejo"; gitea and forgejo send requests that look the same`:                        {"providers", "github,gitea,forgejo"},
		`caddy-dedup/on-unknown is "retry"; write "release" if`:                                                {"on-unknown", "retry"},
		`caddy-dedup/store is "memory"; write "redis", or "file"`:                                              {"store", "memory"},
		"caddy-dedup/redis-secret is missing":                                                                  {"redis-secret", ""},
		`caddy-dedup/redis-secret is "payments-redis" and caddy-dedup/store is "file"; write one of them`:      {"store", "file"},
		`caddy-dedup/redis-secret is "redis://redis:6379"`:                                                     {"redis-secret", "redis://redis:6379"},
		`caddy-dedup/image is "caddy dedup"`:                                                                   {"image", "caddy dedup"},
		`caddy-dedup/image is "a\nb"`:                                                                          {"image", "a\nb"},
		"caddy-dedup/verify leaves out stripe, which would let unsigned requests pass":                         {"providers", "github,stripe", "paths", "/w/*", "verify", "github=w/a"},
		"caddy-dedup/verify names stripe, and caddy-dedup/providers does not":                                  {"providers", "github", "paths", "/w/*", "verify", "github=w/a,stripe=w/b"},
		"caddy-dedup/verify names sns, which no annotation can verify":                                         {"providers", "sns", "paths", "/w/*", "verify", "sns=w/a"},
		"names square, twilio, which no annotation can verify":                                                 {"providers", "square,twilio", "paths", "/w/*", "verify", "square=w/a,twilio=w/b"},
		"caddy-dedup/verify needs caddy-dedup/paths":                                                           {"providers", "github", "verify", "github=w/a"},
		`caddy-dedup/config-map is "Payments"; write the name of a ConfigMap`:                                  {"config-map", "Payments"},
		"the Caddyfile of caddy-dedup/config-map takes the place of caddy-dedup/providers":                     {"config-map", "dedup", "providers", "github"},
		"takes the place of caddy-dedup/on-unknown, caddy-dedup/timeout; write this into the Caddyfile":        {"config-map", "dedup", "timeout", "30s", "on-unknown", "release"},
	} {
		all[reason] = request{pod: newPod(annotated(pairs...)), reason: reason}
	}
	for _, value := range []string{
		"github", "github=w", "github=w/", "github=/a", "=w/a", "w/a", "github=w/a/b", "github=W/a", "github=w-/a", "github=w/..",
		"github=w/a b", "github=w/a}", "github=w/{env.A}", "GitHub=w/a", "github=w/a\nb", "github=w/a=b", "github=w/a;stripe=w/b",
	} {
		all["verify "+value] = request{pod: newPod(annotated("providers", "github", "paths", "/w/*", "verify", value)),
			reason: `has something that is not a provider, a Secret and its key; write them as in "github=payments-webhooks/github"`}
	}
	for annotation, c := range map[string]struct {
		right  string
		values []string
	}{
		"paths":         {`write paths such as "/webhooks/*"`, []string{"webhooks", "*", "https://example.com/", "/a?b", "/a b", "/a,b", "/{env.A}", "/a#b"}},
		"timeout":       {"write the longest time that one run may take", []string{"30", "0s", "30d", "1h30m", " 30s", "30s ", "-5s", "1.5m", "100000s", "30s\nretention 1s", "retention 1s\n30s", "30S"}},
		"upstream-port": {"write the number of the port on which the application listens, 1 to 65535", []string{"0", "http", "65536", "-1", "08080", "3000 ", "80\n81"}},
		"port":          {"write the number of a port for the sidecar, 1024 to 65535", []string{"1023", "http", "65536", "-1", "08080", "8080 ", "8080\n81"}},
		"health-port":   {"write the number of a port for the sidecar's probes, 1024 to 65535", []string{"80", "http", "65536", "-1", "08081", "8081 ", "8081\n82"}},
	} {
		for _, value := range c.values {
			all[annotation+" "+value] = request{pod: newPod(annotated(annotation, value)), reason: fmt.Sprintf("caddy-dedup/%s is %q; %s", annotation, value, c.right)}
		}
	}
	return all
}
