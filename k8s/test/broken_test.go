package test

import (
	"strings"
	"testing"
)

// broken are ways to break the policies, each of which TestPolicies has to notice.
var broken = []struct{ what, file, old, new string }{
	{"no pod is selected", "mutating.yaml", `caddy-dedup/inject: "true"` + "\n  # Again", `caddy-dedup/inject: "on"` + "\n  # Again"},
	{"injected beside an init container", "mutating.yaml", `&& !object.spec.?initContainers.orValue([]).exists(c, c.name == "dedup")`, ""},
	{"injected beside a container", "mutating.yaml", `!object.spec.containers.exists(c, c.name == "dedup")`, "true"},
	{"incomplete annotations are an error", "mutating.yaml", "!variables.complete ? [] :", ""},
	{"not at the end", "mutating.yaml", `path: "/spec/initContainers/-"`, `path: "/spec/initContainers/0"`},
	{"not into the init containers", "mutating.yaml", `path: "/spec/initContainers/-"`, `path: "/spec/containers/-"`},
	{"the init containers replaced", "mutating.yaml", `(has(object.spec.initContainers) ? [] : [`, `(false ? [] : [`},
	{"the init containers not made", "mutating.yaml", `(has(object.spec.initContainers) ? [] : [`, `(true ? [] : [`},
	{"the volumes replaced", "mutating.yaml", `(has(object.spec.volumes) ? [] : [`, `(false ? [] : [`},
	{"the volumes not made", "mutating.yaml", `(has(object.spec.volumes) ? [] : [`, `(true ? [] : [`},
	{"the pod's own volume not seen", "mutating.yaml", `v.name == "caddy-dedup-data"`, `v.name == "data"`},
	{"no volume", "mutating.yaml", `(object.spec.?volumes.orValue([]).exists(v, v.name == "caddy-dedup-data") ? [] : [`, `(true ? [] : [`},
	{"a small volume for files", "mutating.yaml", `variables.inFile ? "1Gi" : "64Mi"`, `"64Mi"`},
	{"no sidecar, an init container", "mutating.yaml", "                restartPolicy: \"Always\",\n", ""},
	{"another image", "mutating.yaml", `variables.annotations[?"caddy-dedup/image"].orValue("registry`, `optional.none().orValue("registry`},
	{"the ports exchanged", "mutating.yaml", `"--to", "localhost:" + variables.upstream`, `"--to", "localhost:" + variables.port`},
	{"the port not configurable", "mutating.yaml", `variables.annotations[?"caddy-dedup/port"].orValue("8080")`, `"8080"`},
	{"the probes' port not configurable", "mutating.yaml", `variables.annotations[?"caddy-dedup/health-port"].orValue("8081")`, `"8081"`},
	{"another default port", "mutating.yaml", `.orValue("8080")`, `.orValue("8443")`},
	{"no providers", "mutating.yaml", `+ variables.providers.map(p, "--provider=" + p)`, ""},
	{"providers with their spaces", "mutating.yaml", `.map(p, p.trim()).filter`, `.filter`},
	{"an empty provider", "mutating.yaml", `.filter(p, p != "")`, ""},
	{"every path", "mutating.yaml", `+ variables.paths.map(p, "--path=" + p)`, ""},
	{"nothing is verified", "mutating.yaml", `+ variables.verify.map(v, "--verify=" + v.split("=")[0] + "={file./secrets/" + v.replace("=", "/") + "}")`, ""},
	{"secrets without their files", "mutating.yaml", `(variables.verify.size() == 0 || object.spec.?volumes`, `(true || object.spec.?volumes`},
	{"secrets that are not mounted", "mutating.yaml", `(variables.verify.size() == 0 ? [] : [`, `(true ? [] : [`},
	{"writable secrets", "mutating.yaml", `readOnly: true`, `readOnly: false`},
	{"an empty volume of secrets", "mutating.yaml", `variables.verify.size() == 0 || object.spec.?volumes`, `object.spec.?volumes`},
	{"names that are no names", "mutating.yaml", "&& variables.verify.all(v, v.matches", "|| variables.verify.all(v, v.matches"},
	{"runs of the command's own 5 minutes", "mutating.yaml", `+ ["--dedup", "timeout " + variables.timeout]`, ""},
	{"another time for a run", "mutating.yaml", `"caddy-dedup/timeout"].orValue("30s")`, `"caddy-dedup/timeout"].orValue("5m")`},
	{"the time not configurable", "mutating.yaml", `variables.annotations[?"caddy-dedup/timeout"].orValue("30s")`, `"30s"`},
	{"unknown not configurable", "mutating.yaml", `variables.annotations[?"caddy-dedup/on-unknown"].orValue("release")`, `"release"`},
	{"unknown always said", "mutating.yaml", `(variables.onUnknown == "release" ? [] : `, `(false ? [] : `},
	{"always Redis", "mutating.yaml", `(variables.inFile ? ["--file", "/data/dedup"] : ["--redis", "{env.REDIS_URL}"])`, `["--redis", "{env.REDIS_URL}"]`},
	{"another secret", "mutating.yaml", `name: variables.secret, key`, `name: "redis", key`},
	{"another key of it", "mutating.yaml", `key: "redis-url"`, `key: "url"`},
	{"a writable root", "mutating.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false"},
	{"as root", "mutating.yaml", "                  runAsNonRoot: true,\n", ""},
	{"capabilities", "mutating.yaml", `{drop: ["ALL"]}`, `{drop: ["NET_RAW"]}`},
	{"no seccomp", "mutating.yaml", `{type: "RuntimeDefault"}`, `{type: "Unconfined"}`},
	{"liveness asks the store", "mutating.yaml", `livenessProbe.httpGet{path: "/live"`, `livenessProbe.httpGet{path: "/ready"`},
	{"readiness asks it", "mutating.yaml", `readinessProbe.httpGet{path: "/live"`, `readinessProbe.httpGet{path: "/ready"`},
	{"the start does not ask it", "mutating.yaml", `startupProbe.httpGet{path: "/ready"`, `startupProbe.httpGet{path: "/live"`},
	{"the start waits for half a minute", "mutating.yaml", `failureThreshold: 1800`, `failureThreshold: 30`},
	{"probes at the sidecar's port", "mutating.yaml", `startupProbe.httpGet{path: "/ready", port: int(variables.health)}`, `startupProbe.httpGet{path: "/ready", port: int(variables.port)}`},
	{"a port with another name", "mutating.yaml", `name: "dedup-health"`, `name: "health"`},
	{"more memory", "mutating.yaml", `limits: {"memory": "256Mi"}`, `limits: {"memory": "1Gi"}`},
	{"no memory limit for Go", "mutating.yaml", "AUTOMEMLIMIT", "AUTOMEMLIMITS"},
	{"the data elsewhere", "mutating.yaml", `mountPath: "/data"`, `mountPath: "/var"`},
	{"a member that pods have not", "mutating.yaml", `restartPolicy: "Always"`, `restartPolicies: "Always"`},
	{"a type in the wrong place", "mutating.yaml", `Object.spec.initContainers.volumeMounts{`, `Object.spec.initContainers.volumeDevices{`},

	{"no labelled pod is looked at", "validating.yaml", "          operator: Exists", "          operator: DoesNotExist"},
	{"the label false is looked at", "validating.yaml", `object.metadata.labels["caddy-dedup/inject"] != "false"`, "true == true"},
	{"any label is right", "validating.yaml", `expression: object.metadata.labels["caddy-dedup/inject"] == "true"`, `expression: "true"`},
	{"any annotation is known", "validating.yaml", `variables.unknown.size() == 0`, "true == true"},
	{"an annotation forgotten", "validating.yaml", `"on-unknown", "port", "health-port"`, `"on-unknown", "health-port"`},
	{"any upstream port", "validating.yaml", `expression: variables.upstream in variables.ports`, `expression: "true"`},
	{"any port", "validating.yaml", `variables.port in variables.ports && int(variables.port) >= 1024`, `"true"`},
	{"a privileged port", "validating.yaml", ` && int(variables.port) >= 1024`, ""},
	{"any health port", "validating.yaml", `variables.health in variables.ports && int(variables.health) >= 1024`, `"true"`},
	{"a port above 65535", "validating.yaml", ` && int(p) <= 65535`, ""},
	{"a number with a zero before it", "validating.yaml", `p.matches("^[1-9][0-9]{0,4}$") && int(p)`, `p.matches("^[0-9]{1,5}$") && int(p)`},
	{"two on one port", "validating.yaml", `expression: variables.upstream != variables.port`, `expression: "true"`},
	{"probes on the sidecar's port", "validating.yaml", `variables.health != variables.port && `, ""},
	{"probes on the application's port", "validating.yaml", ` && variables.health != variables.upstream`, ""},
	{"declared ports not seen", "validating.yaml", `!(variables.port in variables.declared) && `, ""},
	{"declared ports not seen for probes", "validating.yaml", ` && !(variables.health in variables.declared)`, ""},
	{"a container dedup in its own way", "validating.yaml", `.filter(c, c.name != "dedup")`, ""},
	{"any provider", "validating.yaml", `expression: variables.providers.all(p, p in variables.catalogue)`, `expression: "true"`},
	{"a provider forgotten", "validating.yaml", `"github", `, ""},
	{"a provider twice", "validating.yaml", `variables.providers.all(p, variables.providers.filter(q, q == p).size() == 1)`, "true"},
	{"two that look the same", "validating.yaml", "variables.verify.size() > 0\n          || variables.alike.all(group, variables.providers.filter(p, p in group).size() <= 1)", "true"},
	{"two that signatures tell apart", "validating.yaml", "variables.verify.size() > 0\n          || variables.alike", "variables.alike"},
	{"any path", "validating.yaml", `variables.paths.all(p, p.matches("^/[^?#{}\\s]*$"))`, "true == true"},
	{"any secret of a sender", "validating.yaml", `variables.verified.size() == variables.verify.size()`, "true"},
	{"a verify of nothing", "validating.yaml", `(variables.verify.size() > 0 || !("caddy-dedup/verify" in variables.annotations))`, "true"},
	{"a sender that is not served", "validating.yaml", `variables.verified.all(p, p in variables.providers)`, "true == true"},
	{"a sender that cannot be verified", "validating.yaml", `variables.verified.all(p, !(p in variables.unverifiable))`, "true == true"},
	{"a sender that is not verified", "validating.yaml", `variables.verify.size() == 0 || variables.providers.all(p, p in variables.verified)`, "true == true"},
	{"probes that are verified", "validating.yaml", `variables.verify.size() == 0 || variables.paths.size() > 0`, "true == true"},
	{"any time", "validating.yaml", `.matches("^[1-9][0-9]{0,4}[smh]$")`, `.matches("")`},
	{"a time with something before it", "validating.yaml", `"^[1-9][0-9]{0,4}[smh]$"`, `"[1-9][0-9]{0,4}[smh]$"`},
	{"a time with something after it", "validating.yaml", `"^[1-9][0-9]{0,4}[smh]$"`, `"^[1-9][0-9]{0,4}[smh]"`},
	{"a time of nothing", "validating.yaml", `"^[1-9][0-9]{0,4}[smh]$"`, `"^[0-9]{1,5}[smh]$"`},
	{"any unknown", "validating.yaml", `variables.onUnknown in ["release", "hold"]`, `true == true`},
	{"any store", "validating.yaml", `variables.store in ["redis", "file"]`, `true == true`},
	{"no secret needed", "validating.yaml", `expression: variables.store == "file" || variables.secret != ""`, `expression: "true"`},
	{"two stores", "validating.yaml", `expression: variables.store != "file" || variables.secret == ""`, `expression: "true"`},
	{"any name of a secret", "validating.yaml", `variables.secret == "" || !format`, `true || !format`},
	{"any image", "validating.yaml", `.matches("^[^ \t\n]+$")`, `.matches("")`},
	{"a value unquoted", "validating.yaml", `strings.quote(variables.upstream)`, `variables.upstream`},
	{"annotations without the label", "validating.yaml", `expression: "false"`, `expression: "true"`},
	{"a container dedup is not enough", "validating.yaml", "\n        || object.spec.containers.exists(c, c.name == \"dedup\")", ""},
	{"annotations of others", "validating.yaml", `exists(k, k.startsWith("caddy-dedup/"))`, `exists(k, k.startsWith("caddy-dedup"))`},
	{"it only warns", "validating.yaml", "  validationActions: [Deny]\n---", "  validationActions: [Warn]\n---"},
}

func TestBrokenPoliciesAreNoticed(t *testing.T) {
	all, pod := requests(), podOfTheManifest(t)
	for _, b := range broken {
		t.Run(b.file+": "+b.what, func(t *testing.T) {
			files := policies(t)
			if !strings.Contains(files[b.file], b.old) {
				t.Fatalf("%s does not have %q; say what it is now", b.file, b.old)
			}
			files[b.file] = strings.Replace(files[b.file], b.old, b.new, 1)
			c := startReady(t, files, nil)
			for _, r := range all {
				if r.try(c, pod) != nil {
					return
				}
			}
			t.Error("no request notices it")
		})
	}
}
