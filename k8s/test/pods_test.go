package test

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// request is a pod that somebody creates, and what has to become of it.
type request struct {
	pod *corev1.Pod
	// refused are the parts of the message with which it is refused; none: it is created.
	refused []string
	// untouched pods are created as they came.
	untouched bool
	// args are the sidecar's.
	args []string
	// also says what else is wrong with the pod that came out, "" for nothing.
	also func(corev1.PodSpec) string
}

// edit changes the pod of a request before it is sent.
type edit func(*corev1.Pod)

// annotated sets an annotation, or removes it if the value is empty.
func annotated(name, value string) edit {
	return func(pod *corev1.Pod) {
		if value == "" {
			delete(pod.Annotations, "caddy-dedup/"+name)
		} else {
			pod.Annotations["caddy-dedup/"+name] = value
		}
	}
}

func labelled(value string) edit {
	return func(pod *corev1.Pod) { pod.Labels["caddy-dedup/inject"] = value }
}

func withoutLabel(pod *corev1.Pod) { delete(pod.Labels, "caddy-dedup/inject") }

func withoutAnnotations(pod *corev1.Pod) { pod.Annotations = nil }

func withContainer(name string, ports ...int32) edit {
	return func(pod *corev1.Pod) {
		container := corev1.Container{Name: name, Image: name}
		for _, port := range ports {
			container.Ports = append(container.Ports, corev1.ContainerPort{ContainerPort: port})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
}

func withInitContainers(names ...string) edit {
	return func(pod *corev1.Pod) {
		for _, name := range names {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{Name: name, Image: name})
		}
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
			Labels: map[string]string{"app": "payments", "caddy-dedup/inject": "true"},
			Annotations: map[string]string{
				"caddy-dedup/upstream-port": "3000", "caddy-dedup/redis-secret": "payments-redis", "prometheus.io/scrape": "true",
			},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "payments", Image: "payments", Ports: []corev1.ContainerPort{{ContainerPort: 3000}},
		}}},
	}
	for _, edit := range edits {
		edit(pod)
	}
	return pod
}

var (
	inRedis = []string{"--redis", "{env.REDIS_URL}"}
	inFile  = []string{"--file", "/data/dedup"}
)

// args are the sidecar's with the time that a run has by default.
func args(from, to, health string, rest ...string) []string {
	return argsWith("30s", from, to, health, rest...)
}

// argsWith are the sidecar's with a time for a run. Providers stand before it.
func argsWith(timeout, from, to, health string, rest ...string) []string {
	all := append([]string{"proxy", "--from", from, "--to", to, "--health", health}, rest...)
	at := slices.IndexFunc(all, func(a string) bool { return a == "--redis" || a == "--file" || a == "--print" })
	return slices.Insert(all, at, "--dedup", "timeout "+timeout)
}

// verifying are the sidecar's with providers of which the requests to /webhooks/ are verified, by
// secrets in files that are named as in hasSecrets.
func verifying(providers string, files ...string) []string {
	var flags []string
	for provider := range strings.SplitSeq(providers, ",") {
		flags = append(flags, "--provider="+provider)
	}
	flags = append(flags, "--path=/webhooks/*")
	for _, file := range files {
		provider, _, _ := strings.Cut(file, "/")
		flags = append(flags, "--verify="+provider+"={file./secrets/"+file+"}")
	}
	return args(":8080", "localhost:3000", ":8081", append(flags, inRedis...)...)
}

// hasSecrets says what is wrong with the files of secrets, each of <provider>/<Secret>/<key>.
func hasSecrets(files ...string) func(corev1.PodSpec) string {
	return func(spec corev1.PodSpec) string {
		var got []string
		if projected := volume(spec, "caddy-dedup-secrets").Projected; projected != nil {
			for _, source := range projected.Sources {
				item := source.Secret.Items[0]
				provider, _, _ := strings.Cut(item.Path, "/")
				if item.Path != provider+"/"+source.Secret.Name+"/"+item.Key || len(source.Secret.Items) != 1 {
					return "a source of the secrets is " + inJSON(source)
				}
				got = append(got, item.Path)
			}
		}
		sidecar := spec.InitContainers[slices.IndexFunc(spec.InitContainers, isSidecar)]
		mounted := slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == "caddy-dedup-secrets" && m.MountPath == "/secrets" && m.ReadOnly
		})
		if !slices.Equal(got, files) || !mounted {
			return fmt.Sprintf("the secrets are %q, mounted: %t; want %q", got, mounted, files)
		}
		return ""
	}
}

// requests are all that is tried on the policies, by name.
func requests() map[string]request {
	all := map[string]request{}
	for name, r := range injected() {
		all["injected: "+name] = r
	}
	for name, pod := range untouched() {
		all["untouched: "+name] = request{pod: pod, untouched: true}
	}
	for name, r := range refused() {
		all["refused: "+name] = r
	}
	return all
}

func injected() map[string]request {
	usual := args(":8080", "localhost:3000", ":8081", inRedis...)
	claim := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "keys"}}
	empty := corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	data := func(want string) func(corev1.PodSpec) string {
		return func(spec corev1.PodSpec) string {
			got := volume(spec, "caddy-dedup-data")
			if got.EmptyDir == nil || got.EmptyDir.SizeLimit == nil || !got.EmptyDir.SizeLimit.Equal(resource.MustParse(want)) {
				return fmt.Sprintf("the data is in %s; want an emptyDir of %s", inJSON(got), want)
			}
			return ""
		}
	}
	verified := func(providers, verify string, files ...string) request {
		return request{
			pod:  newPod(annotated("providers", providers), annotated("paths", "/webhooks/*"), annotated("verify", verify)),
			args: verifying(providers, files...), also: hasSecrets(files...),
		}
	}
	return map[string]request{
		"the least":                   {pod: newPod(), args: usual, also: data("64Mi")},
		"a pod with a name":           {pod: newPod(func(p *corev1.Pod) { p.Name, p.GenerateName = "payments", "" }), args: usual},
		"init containers and volumes": {pod: newPod(withInitContainers("migrate", "mesh"), withVolume("cache", empty)), args: usual, also: data("64Mi")},
		"empty lists": {pod: newPod(func(p *corev1.Pod) {
			p.Spec.InitContainers, p.Spec.Volumes = []corev1.Container{}, []corev1.Volume{}
		}), args: usual},
		"webhooks": {pod: newPod(annotated("providers", "github, stripe,twilio")),
			args: args(":8080", "localhost:3000", ":8081", append([]string{"--provider=github", "--provider=stripe", "--provider=twilio"}, inRedis...)...)},
		"webhooks of some paths": {pod: newPod(annotated("providers", "github"), annotated("paths", "/webhooks/*, /hook")),
			args: args(":8080", "localhost:3000", ":8081", append([]string{"--provider=github", "--path=/webhooks/*", "--path=/hook"}, inRedis...)...)},
		"verified webhooks": verified("github,stripe",
			"stripe=payments-webhooks/stripe, github=payments-webhooks/github,github=old.webhooks/GITHUB_SECRET",
			"stripe/payments-webhooks/stripe", "github/payments-webhooks/github", "github/old.webhooks/GITHUB_SECRET"),
		"two that look the same, and are told apart by their signatures": verified("openai,replicate",
			"openai=w/a,replicate=w/a", "openai/w/a", "replicate/w/a"),
		"a public key": verified("discord", "discord=w/key", "discord/w/key"),
		"two that read the same member": {pod: newPod(annotated("providers", "stripe,paypal")),
			args: args(":8080", "localhost:3000", ":8081", append([]string{"--provider=stripe", "--provider=paypal"}, inRedis...)...)},
		"no provider between commas": {pod: newPod(annotated("providers", " , ")), args: usual},
		"other ports": {pod: newPod(annotated("upstream-port", "8080"), annotated("port", "9000"), annotated("health-port", "9001"), withContainer("helper", 8080)),
			args: args(":9000", "localhost:8080", ":9001", inRedis...)},
		"the first and the last port": {pod: newPod(annotated("upstream-port", "1"), annotated("port", "1024"), annotated("health-port", "65535")),
			args: args(":1024", "localhost:1", ":65535", inRedis...)},
		"an image": {pod: newPod(annotated("image", "example.com/dedup:v1")), args: usual, also: func(spec corev1.PodSpec) string {
			if image := spec.InitContainers[0].Image; image != "example.com/dedup:v1" {
				return "the image is " + image
			}
			return ""
		}},
		"a longer run":          {pod: newPod(annotated("timeout", "5m")), args: argsWith("5m", ":8080", "localhost:3000", ":8081", inRedis...)},
		"the longest run":       {pod: newPod(annotated("timeout", "99999h")), args: argsWith("99999h", ":8080", "localhost:3000", ":8081", inRedis...)},
		"the shortest run":      {pod: newPod(annotated("timeout", "1s")), args: argsWith("1s", ":8080", "localhost:3000", ":8081", inRedis...)},
		"unknown runs are held": {pod: newPod(annotated("on-unknown", "hold")), args: slices.Insert(slices.Clone(usual), 9, "--dedup", "on_unknown hold")},
		"unknown runs are free": {pod: newPod(annotated("on-unknown", "release")), args: usual},
		"redis, said so":        {pod: newPod(annotated("store", "redis")), args: usual},
		"a file": {pod: newPod(annotated("store", "file"), annotated("redis-secret", "")),
			args: args(":8080", "localhost:3000", ":8081", inFile...), also: data("1Gi")},
		"a file on a volume of one's own": {
			pod:  newPod(annotated("store", "file"), annotated("redis-secret", ""), withVolume("caddy-dedup-data", claim)),
			args: args(":8080", "localhost:3000", ":8081", inFile...),
			also: func(spec corev1.PodSpec) string {
				if len(spec.Volumes) != 1 || spec.Volumes[0].PersistentVolumeClaim == nil {
					return "the volumes are " + inJSON(spec.Volumes) + "; want the pod's own alone"
				}
				return ""
			}},
	}
}

func untouched() map[string]*corev1.Pod {
	return map[string]*corev1.Pod{
		"no label and no annotations":     newPod(withoutLabel, withoutAnnotations),
		"no labels at all":                newPod(func(p *corev1.Pod) { p.Labels = nil }, withoutAnnotations),
		"the label false":                 newPod(labelled("false")),
		"the label false, and nonsense":   newPod(labelled("false"), annotated("upstream-port", "x")),
		"annotations of others":           newPod(withoutLabel, func(p *corev1.Pod) { p.Annotations = map[string]string{"caddy-dedupe/x": "y"} }),
		"an init container of that name":  newPod(withInitContainers("dedup")),
		"a container of that name":        newPod(withContainer("dedup", 8080, 8081)),
		"no label, and the ports in use":  newPod(withoutLabel, withoutAnnotations, withContainer("helper", 8080)),
		"no label, and a container dedup": newPod(withoutLabel, withoutAnnotations, withInitContainers("dedup")),
	}
}

func refused() map[string]request {
	because := func(pod *corev1.Pod, parts ...string) request { return request{pod: pod, refused: parts} }
	secretMissing := []string{"caddy-dedup/redis-secret is missing", "a Secret with the key redis-url", `"file"`}
	all := map[string]request{
		"the label yes":   because(newPod(labelled("yes")), `the label caddy-dedup/inject is "yes"`, `write "true"`),
		"the label True":  because(newPod(labelled("True")), `the label caddy-dedup/inject is "True"`, `write "true"`),
		"the label empty": because(newPod(labelled("")), `the label caddy-dedup/inject is ""`, `write "true"`),
		"annotations, and no label": because(newPod(withoutLabel),
			"caddy-dedup/redis-secret, caddy-dedup/upstream-port and not the label caddy-dedup/inject", `"true"`),
		"an annotation that is not known": because(newPod(annotated("upstream", "3000")),
			"the annotation caddy-dedup/upstream is not known", "caddy-dedup/upstream-port, caddy-dedup/redis-secret"),
		"no annotations":   because(newPod(withoutAnnotations), "caddy-dedup/upstream-port is missing", `such as "3000"`),
		"no upstream port": because(newPod(annotated("upstream-port", "")), "caddy-dedup/upstream-port is missing", `such as "3000"`),
		"a port of the sidecar that is the application's": because(newPod(annotated("upstream-port", "8080")),
			"caddy-dedup/upstream-port is 8080, which is the sidecar's own port", "caddy-dedup/port"),
		"both said to be the same": because(newPod(annotated("upstream-port", "9000"), annotated("port", "9000")),
			"caddy-dedup/upstream-port is 9000, which is the sidecar's own port", "caddy-dedup/port"),
		"probes at the sidecar's port": because(newPod(annotated("port", "8081")),
			"the sidecar's probes is 8081, which is also the sidecar's own", "caddy-dedup/health-port"),
		"probes at the application's port": because(newPod(annotated("upstream-port", "8081")),
			"the sidecar's probes is 8081, which is also the application's", "caddy-dedup/health-port"),
		"a container has the sidecar's port": because(newPod(withContainer("helper", 9, 8080)),
			"a container of the pod has the port 8080, which is the sidecar's", "caddy-dedup/port"),
		"a container has the probes' port": because(newPod(withContainer("helper", 8081)),
			"a container of the pod has the port 8081", "caddy-dedup/health-port"),
		"an unknown provider": because(newPod(annotated("providers", "github,gitbub")),
			`caddy-dedup/providers names "gitbub"; known are`, "github", "zoom"),
		"a provider in capitals": because(newPod(annotated("providers", "GitHub")), `names "GitHub"; known are`),
		"two in one word":        because(newPod(annotated("providers", "github stripe")), `names "github stripe"; known are`),
		"a provider twice":       because(newPod(annotated("providers", "github,github")), `is "github,github"; name each provider once`),
		"two that look the same": because(newPod(annotated("providers", "github,gitea,forgejo")),
			`is "github,gitea,forgejo"; gitea and forgejo send requests that look the same`, "name one of them"),
		"an unknown end": because(newPod(annotated("on-unknown", "retry")),
			`caddy-dedup/on-unknown is "retry"`, `write "release" if`, `or "hold" if`),
		"an unknown store":     because(newPod(annotated("store", "memory")), `caddy-dedup/store is "memory"`, `write "redis", or "file"`),
		"no Redis secret":      because(newPod(annotated("redis-secret", "")), secretMissing...),
		"none, and redis said": because(newPod(annotated("redis-secret", ""), annotated("store", "redis")), secretMissing...),
		"a file, and a secret": because(newPod(annotated("store", "file")),
			`caddy-dedup/redis-secret is "payments-redis" and caddy-dedup/store is "file"; write one of them`),
		"a URL for the secret": because(newPod(annotated("redis-secret", "redis://redis:6379")),
			`caddy-dedup/redis-secret is "redis://redis:6379"`, "the name of a Secret"),
		"an image with a space": because(newPod(annotated("image", "caddy dedup")), `caddy-dedup/image is "caddy dedup"`, "the name of an image"),
		"an image with a line":  because(newPod(annotated("image", "a\nb")), `caddy-dedup/image is "a\nb"`, "the name of an image"),
	}
	verified := func(providers, paths, verify string) *corev1.Pod {
		return newPod(annotated("providers", providers), annotated("paths", paths), annotated("verify", verify))
	}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		reason string
	}{
		"a provider that is not verified": {verified("github,stripe", "/w/*", "github=w/a"),
			"caddy-dedup/verify leaves out stripe, by which anybody could get past"},
		"a verified provider that is not served": {verified("github", "/w/*", "github=w/a,stripe=w/b"),
			"caddy-dedup/verify names stripe, and caddy-dedup/providers does not"},
		"nothing is served": {verified("", "/w/*", "github=w/a"), "caddy-dedup/verify names github, and caddy-dedup/providers does not"},
		"a provider that cannot be verified": {verified("sns", "/w/*", "sns=w/a"),
			"caddy-dedup/verify names sns, which no annotation can verify: see docs/signatures.md"},
		"a provider that needs a URL": {verified("square,twilio", "/w/*", "square=w/a,twilio=w/b"), "names square, twilio, which no annotation can verify"},
		"every path is verified":      {verified("github", "", "github=w/a"), `caddy-dedup/verify needs caddy-dedup/paths`},
		"nothing behind verify": {newPod(func(pod *corev1.Pod) {
			pod.Annotations["caddy-dedup/verify"] = " , "
			pod.Annotations["caddy-dedup/paths"] = "/w/*"
		}), "caddy-dedup/verify has something that is not a provider, a Secret and its key"},
	} {
		all[name] = because(c.pod, c.reason)
	}
	for _, value := range []string{
		"open-sesame", "github", "github=", "github=w", "github=w/", "github=/a", "=w/a", "w/a", "github=w/a/b", "github=W/a", "github=w-/a",
		"github=w/..", "github=w/a b", "github=w/a}", "github=w/{env.A}", "GitHub=w/a", "github=w/a\nb", "github=w/a=b", "github w/a", "github=w/a;stripe=w/b",
	} {
		all[fmt.Sprintf("verify %q", value)] = because(verified("github", "/w/*", value),
			`has something that is not a provider, a Secret and its key; write them as in "github=payments-webhooks/github"`)
	}
	for _, value := range []string{"webhooks", "*", "https://example.com/", "/a?b", "/a b", "/a,b", "/{env.A}", "/a#b"} {
		all[fmt.Sprintf("paths %q", value)] = because(verified("github", value, "github=w/a"),
			fmt.Sprintf("caddy-dedup/paths is %q", value), `such as "/webhooks/*"`)
	}
	for _, value := range []string{"30", "0s", "00s", "30d", "500ms", "1h30m", " 30s", "30s ", "-5s", "1.5m", "100000s", "30s\nretention 1s", "retention 1s\n30s", "30S"} {
		all[fmt.Sprintf("timeout %q", value)] = because(newPod(annotated("timeout", value)),
			fmt.Sprintf("caddy-dedup/timeout is %q", value), `such as "30s" or "5m"`)
	}
	for annotation, c := range map[string]struct {
		below string // a number just below those that are taken
		right string
	}{
		"upstream-port": {"0", "1 to 65535"}, "port": {"1023", "1024 to 65535"}, "health-port": {"80", "1024 to 65535"},
	} {
		for _, value := range []string{"http", "65536", "99999999999999999999", "-1", "08080", "3000 ", "0x1F90", "80\n81", c.below} {
			all[fmt.Sprintf("%s %q", annotation, value)] = because(newPod(annotated(annotation, value)),
				fmt.Sprintf("caddy-dedup/%s is %q", annotation, value), c.right)
		}
	}
	return all
}

// try sends a request, and returns what became of it that should not have.
func (r request) try(c *cluster, manifest corev1.PodSpec) error {
	got, err := c.create(r.pod)
	switch {
	case len(r.refused) > 0:
		if err == nil {
			return fmt.Errorf("it was created; want that it is refused with %q", r.refused)
		}
		for _, part := range r.refused {
			if !strings.Contains(err.Error(), part) {
				return fmt.Errorf("it was refused with %q; want %q in it", err.Error(), part)
			}
		}
		return nil
	case err != nil:
		return err
	case r.untouched:
		if !equal(got, r.pod) {
			return fmt.Errorf("it was changed to %s", inJSON(got))
		}
		return nil
	}
	if err := r.wrong(got, manifest); err != nil {
		return err
	}
	// And never twice: as it comes out, it can go in again.
	again, err := c.create(got)
	if err != nil {
		return fmt.Errorf("the pod that came out is refused: %w", err)
	}
	if !equal(again, got) {
		return fmt.Errorf("the pod that came out was changed again, to %s", inJSON(again))
	}
	return nil
}

// wrong says what is wrong with a pod that was injected.
func (r request) wrong(got *corev1.Pod, manifest corev1.PodSpec) error {
	at := slices.IndexFunc(got.Spec.InitContainers, isSidecar)
	if at < 0 || at != len(got.Spec.InitContainers)-1 {
		return fmt.Errorf("the sidecar is not the last init container: %s", inJSON(got.Spec.InitContainers))
	}
	sidecar := got.Spec.InitContainers[at]
	if !slices.Equal(sidecar.Args, r.args) {
		return fmt.Errorf("its arguments are %q; want %q", sidecar.Args, r.args)
	}
	if problem := unlikeTheManifest(manifest, sidecar); problem != "" {
		return errors.New(problem)
	}
	if len(sidecar.Ports) != 2 || sidecar.ReadinessProbe.HTTPGet.Port != intstr.FromInt32(sidecar.Ports[1].ContainerPort) ||
		fmt.Sprintf(":%d", sidecar.Ports[0].ContainerPort) != r.args[2] || fmt.Sprintf(":%d", sidecar.Ports[1].ContainerPort) != r.args[6] {
		return fmt.Errorf("its ports are %s, and its arguments %q", inJSON(sidecar.Ports), r.args)
	}
	url := variable(sidecar, "REDIS_URL")
	if wanted := slices.Contains(r.args, "--redis"); wanted != (url != nil) || wanted &&
		(url.ValueFrom.SecretKeyRef.Name != r.pod.Annotations["caddy-dedup/redis-secret"] || url.ValueFrom.SecretKeyRef.Key != "redis-url") {
		return fmt.Errorf("REDIS_URL is %s", inJSON(url))
	}
	if !slices.ContainsFunc(sidecar.VolumeMounts, func(m corev1.VolumeMount) bool {
		return m.Name == "caddy-dedup-data" && m.MountPath == "/data" && !m.ReadOnly
	}) {
		return fmt.Errorf("it cannot write to /data: %s", inJSON(sidecar.VolumeMounts))
	}
	// What was there is there still.
	rest := got.DeepCopy()
	rest.Spec.InitContainers = rest.Spec.InitContainers[:at]
	rest.Spec.Volumes = slices.DeleteFunc(rest.Spec.Volumes, func(v corev1.Volume) bool {
		return strings.HasPrefix(v.Name, "caddy-dedup-") && volume(r.pod.Spec, v.Name) == (corev1.VolumeSource{})
	})
	if !equal(rest, r.pod) {
		return fmt.Errorf("besides the sidecar, it was changed to %s", inJSON(rest))
	}
	if r.also != nil {
		if problem := r.also(got.Spec); problem != "" {
			return errors.New(problem)
		}
	}
	return nil
}
