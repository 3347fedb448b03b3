package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// confinement is what a process is told that confines itself before it becomes a program.
type confinement struct {
	Root, Volume string // without a root it only tries whether it could
	User         int    // -1 where it has one of its own already
	Program      []string
}

const confined = "DEDUP_TEST_CONFINED"

// init is the beginning of such a process, which is the test's own binary.
func init() {
	text := os.Getenv(confined)
	if text == "" {
		return
	}
	var c confinement
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.become()
	}
	fmt.Fprintln(os.Stderr, "confined:", err)
	os.Exit(125)
}

// confinedProcess returns the command that confines itself: as root, or in a namespace of
// its own in which this user is the other one.
func confinedProcess(t *testing.T, c confinement) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if os.Getuid() != 0 {
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: c.User, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: c.User, HostID: os.Getgid(), Size: 1}}
		attributes.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP}
		c.User = -1
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", confined + "=" + string(text)}
	cmd.SysProcAttr = attributes
	cmd.WaitDelay = patience
	return cmd
}

// become confines this process, and makes it the program. It returns only if it fails.
func (c confinement) become() error {
	runtime.LockOSThread() // what follows is a thread's own, until it is the only one
	if c.Root == "" {
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		os.Exit(0)
	}
	volume := filepath.Join(c.Root, c.Volume)
	for _, m := range []struct {
		source, target string
		flags          uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{c.Root, c.Root, unix.MS_BIND},
		{volume, volume, unix.MS_BIND},
		{"", c.Root, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV},
		{"", volume, unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
	} {
		if err := unix.Mount(m.source, m.target, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	if err := errors.Join(unix.Chroot(c.Root), unix.Chdir("/")); err != nil {
		return err
	}
	for capability := uintptr(0); capability <= unix.CAP_LAST_CAP; capability++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	if c.User >= 0 {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(c.User), syscall.Setuid(c.User)); err != nil {
			return err
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	none := [2]unix.CapUserData{}
	if err := errors.Join(
		unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0),
		unix.Capset(&header, &none[0]),
		unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
	); err != nil {
		return err
	}
	return syscall.Exec(c.Program[0], c.Program, slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, confined+"=")
	}))
}

// mustBeConfined reads in the kernel's own words what the process may do.
func mustBeConfined(t *testing.T, p *caddy) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	user := 65532
	if os.Getuid() != 0 {
		user = os.Getuid() // which is 65532 within
	}
	none := "0000000000000000"
	for name, want := range map[string]string{
		"Uid": fmt.Sprint(user), "CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none, "NoNewPrivs": "1",
	} {
		_, rest, _ := strings.Cut(string(status), "\n"+name+":")
		if fields := strings.Fields(rest); len(fields) == 0 || fields[0] != want {
			t.Errorf("%s is %.40q, want %s", name, rest, want)
		}
	}
}
