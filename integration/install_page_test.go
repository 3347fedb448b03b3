package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

const unitsDirectory = "../packaging/systemd"

// Most commands of the page of installation ask for root, a registry, or a release. What
// they do is tried by tests that need none of these, or it is said here that it is not.
func init() {
	for by, commands := range map[string][]string{
		"TestBinaryOfTheImageIsReproducible, by the Dockerfile's flags": {
			"go build -ldflags '-X github.com/caddy-dedup/caddy-dedup.Version=v0.1.0' ./cmd/caddy-dedup",
		},
		"TestMain, which builds the same package; it is not published yet": {
			"go install github.com/caddy-dedup/caddy-dedup/cmd/caddy-dedup@latest",
		},
		"TestBuildsByXcaddy in tools/build, in .ci/run long": {
			"xcaddy build --with github.com/caddy-dedup/caddy-dedup=.",
			"go -C tools run ./build",
		},
		"TestRelease in tools/release, which unpacks an archive, checks it, and runs it; no release is there to fetch": {
			"curl -LO https://github.com/caddy-dedup/caddy-dedup/releases/download/v0.1.0/caddy-dedup_0.1.0_linux_amd64.tar.gz",
			"curl -LO https://github.com/caddy-dedup/caddy-dedup/releases/download/v0.1.0/checksums.txt",
			"sha256sum --check --ignore-missing checksums.txt",
			"tar -xzf caddy-dedup_0.1.0_linux_amd64.tar.gz",
			"sudo install caddy-dedup_0.1.0_linux_amd64/caddy-dedup /usr/local/bin/",
		},
		"nothing: it asks GitHub about what .github/workflows/release.yml has made, which actionlint reads": {
			"gh attestation verify caddy-dedup_0.1.0_linux_amd64.tar.gz --repo caddy-dedup/caddy-dedup",
			"gh attestation verify oci://ghcr.io/caddy-dedup/caddy-dedup:0.1.0 --repo caddy-dedup/caddy-dedup",
		},
		"TestRelease in tools/release, in .ci/run long": {
			"go -C tools run ./release -version v0.1.0",
		},
		"TestContainerRuns and TestContainerIsAProxy, which run the image's binary as its Dockerfile says; there is no registry here": {
			"docker build --build-arg VERSION=v0.1.0 -t ghcr.io/caddy-dedup/caddy-dedup:0.1.0 .",
			"docker run --detach --name dedup --stop-timeout 360 --publish 8080:8080 --volume dedup-data:/data --add-host host.docker.internal:host-gateway ghcr.io/caddy-dedup/caddy-dedup:0.1.0 proxy --from :8080 --to host.docker.internal:3000",
			"docker run --detach --name dedup --stop-timeout 360 --publish 8080:8080 --volume dedup-data:/data --add-host host.docker.internal:host-gateway --volume ./Caddyfile:/etc/caddy/Caddyfile:ro --read-only --cap-drop ALL --security-opt no-new-privileges ghcr.io/caddy-dedup/caddy-dedup:0.1.0",
			"docker exec dedup caddy-dedup keys list",
		},
		"TestSystemdUnitServes, which runs what the unit runs": {
			"sudo install -D --mode 644 packaging/systemd/caddy-dedup.service --target-directory /etc/systemd/system",
			"test -e /etc/caddy-dedup/Caddyfile || sudo install -D --mode 644 packaging/systemd/Caddyfile --target-directory /etc/caddy-dedup",
			"sudo systemctl enable --now caddy-dedup",
			"sudo systemctl reload caddy-dedup",
			"sudo CADDY_ADMIN=unix//run/caddy-dedup/admin.sock caddy-dedup keys list",
		},
		"TestSystemdUnitsAreSound, which has systemd read the units": {
			"sudo systemctl daemon-reload",
		},
		"TestSystemdUnitOfAProxyServes, which runs what the unit runs": {
			"sudo install -D --mode 644 packaging/systemd/caddy-dedup@.service --target-directory /etc/systemd/system",
			"sudo mkdir -p /etc/caddy-dedup",
			`echo 'PROXY_FLAGS="--from :8080 --to localhost:3000 --provider github"' | sudo tee /etc/caddy-dedup/orders.env`,
			"sudo systemctl enable --now caddy-dedup@orders",
			"sudo XDG_DATA_HOME=/var/lib/caddy-dedup-orders caddy-dedup keys list",
		},
	} {
		for _, command := range commands {
			commandsRunBy[command] = by
		}
	}
}

// The page's Compose file fits the image, and loses nothing at a stop.
func TestComposeFileOfThePage(t *testing.T) {
	t.Parallel()
	m := readImage(t)
	compared := 0
	for _, b := range docBlocks(t) {
		if b.page != "install.md" || b.language != "yaml" {
			continue
		}
		compared++
		var project struct {
			Services map[string]struct {
				Image           string            `yaml:"image"`
				Command         []string          `yaml:"command"`
				Ports           []string          `yaml:"ports"`
				Volumes         []string          `yaml:"volumes"`
				ReadOnly        bool              `yaml:"read_only"`
				CapDrop         []string          `yaml:"cap_drop"`
				SecurityOpt     []string          `yaml:"security_opt"`
				StopGracePeriod string            `yaml:"stop_grace_period"`
				DependsOn       []string          `yaml:"depends_on"`
				Environment     map[string]string `yaml:"environment"`
			} `yaml:"services"`
			Volumes map[string]any `yaml:"volumes"`
		}
		decoder := yaml.NewDecoder(strings.NewReader(b.text))
		decoder.KnownFields(true)
		if err := decoder.Decode(&project); err != nil {
			t.Fatalf("%s:%d: %v", b.page, b.line, err)
		}
		dedup := project.Services["dedup"]
		volume, target, _ := strings.Cut(strings.Join(dedup.Volumes, ""), ":")
		if _, named := project.Volumes[volume]; !named || target != m.volume {
			t.Errorf("the volume %s is at %s; want %s, and that it is named", volume, target, m.volume)
		}
		if !dedup.ReadOnly || !slices.Equal(dedup.CapDrop, []string{"ALL"}) {
			t.Errorf("the container may do too much: %+v", dedup)
		}
		if stop, err := time.ParseDuration(dedup.StopGracePeriod); err != nil || stop <= 5*time.Minute {
			t.Errorf("a run may take 5 minutes, and the container is killed after %s, %v", dedup.StopGracePeriod, err)
		}
		// The flags are those of the program, which shows what they stand for.
		output, code := command(t, shortTempDir(t), append(dedup.Command, "--print")...)
		if code != 0 || !strings.Contains(output, "payments:3000") || !strings.Contains(output, "redis:6379") {
			t.Errorf("%q ended with %d:\n%s", dedup.Command, code, output)
		}
	}
	if compared != 1 {
		t.Errorf("the page has %d Compose files, want 1", compared)
	}
}

// The page shows the Caddyfile and the flags of the units as they are.
func TestSystemdUnitsAreThoseOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	caddyfile, err := os.ReadFile(filepath.Join(unitsDirectory, "Caddyfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, config, _ := strings.Cut(string(caddyfile), "\n") // the first line says where it belongs
	proxy, err := os.ReadFile(filepath.Join(unitsDirectory, "caddy-dedup@.service"))
	if err != nil {
		t.Fatal(err)
	}
	_, flags, _ := strings.Cut(string(proxy), "# PROXY_FLAGS=")
	flags, _, _ = strings.Cut(flags, "\n")
	for _, text := range []string{"```caddyfile\n" + config + "```", "'PROXY_FLAGS=" + flags + "'"} {
		if len(text) < 40 || !strings.Contains(string(page), text) {
			t.Errorf("the page does not have\n%s", text)
		}
	}
}
