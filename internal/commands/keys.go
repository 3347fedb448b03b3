package commands

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/keyscommand"
)

// adminProgram is what the commands that ask the admin API have to know.
var adminProgram = keyscommand.Program{
	DefaultAddress: func() string { return caddy.DefaultAdminListen }, // that of $CADDY_ADMIN, where it is set
	Directory:      caddy.AppDataDir,
	ParseAddress:   parseAdminAddress,
	Exit:           exitQuietly,
}

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "keys",
		Usage:     keyscommand.Usage,
		Short:     keyscommand.Short,
		Long:      keyscommand.Long,
		CobraFunc: adminProgram.SetUp,
	})
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "health",
		Usage:     keyscommand.HealthUsage,
		Short:     keyscommand.HealthShort,
		Long:      keyscommand.HealthLong,
		CobraFunc: adminProgram.SetUpHealth,
	})
}

// adminOff stands in the place of an address where there is no admin API.
const adminOff = "off"

// parseAdminAddress reads an address as Caddy's admin API has them. What Caddy would read as
// the name of a host, and nobody means so, is an error that says what was probably meant.
func parseAdminAddress(text string) (keyscommand.Address, error) {
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return keyscommand.Address{}, fmt.Errorf("a port has a host before it: localhost:%s", text)
	}
	for _, beginning := range []string{"unix://", "unix:"} {
		if path, ok := strings.CutPrefix(text, beginning); ok {
			return keyscommand.Address{}, fmt.Errorf("did you mean unix/%s?", path)
		}
	}
	if text == adminOff {
		return keyscommand.Address{}, errors.New("it says that there is no admin API")
	}
	if strings.HasPrefix(text, "/") {
		return keyscommand.Address{}, fmt.Errorf("it is a path; did you mean unix/%s?", text)
	}
	at, err := caddy.ParseNetworkAddressWithDefaults(text, "tcp", 2019)
	if err != nil {
		return keyscommand.Address{}, err
	}
	// A URL, or a path behind the port, reads as the name of a network.
	if at.PortRangeSize() > 1 || !at.IsUnixNetwork() && !strings.HasPrefix(at.Network, "tcp") {
		return keyscommand.Address{}, errors.New("it is not one address that can be dialled")
	}
	if at.IsUnixNetwork() {
		at.Host, _, _ = strings.Cut(at.Host, "|")
	}
	return keyscommand.Address{Network: at.Network, Address: at.JoinHostPort(0), Socket: at.IsUnixNetwork()}, nil
}

// exitQuietly ends a command with a status of more than 1, without a word of Caddy's.
func exitQuietly(cmd *cobra.Command, status int) error {
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return status, nil })(cmd, nil)
}
