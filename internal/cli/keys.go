package cli

import (
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

var keysCommand = caddycmd.Command{
	Name:  "keys",
	Usage: "list|show|release|complete|forget",
	Short: "Lists and shows keys, releases, completes and forgets them",
	Long: `
Asks a running caddy-dedup about its keys, by its admin API. A key is named by
its 64 hex digits, as in the log, by the 16 of them that lists show, or by the
delivery ID that the sender knows.

The admin API is that of --address, else of $CADDY_ADMIN, else at Caddy's
default, localhost:2019, else at the socket in the data directory where the
command proxy puts it.

Exit status: 0 done; 1 not found, or refused because a run is in flight, the
key has changed since the command looked, or a key to complete is complete;
2 wrong usage, or not confirmed; 3 no answer from the admin API or a store, or
the output cannot be written.`,
	CobraFunc: func(cmd *cobra.Command) {
		cmd.Args = cobra.ArbitraryArgs // cobra's own error would end with status 1
		cmd.RunE = runE(func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return wrongUsage("%q is no command; accepted are list, show, release, complete and forget", args[0])
		})
		setUp(cmd)
		addressFlag(cmd)
		cmd.PersistentFlags().Bool("json", false, "Print one JSON object a line")
		cmd.AddCommand(listCommand(), showCommand(),
			changeCommand("release", "Releases keys: the next request runs", "released", http.MethodPost, "/release", `
Releases a held, complete or exhausted key: its next request runs. The record
keeps its history, and the allowed attempts start again.`, nil),
			completeCommand(),
			changeCommand("forget", "Forgets keys", "forgotten", http.MethodDelete, "", `
Removes a key and its kept response, also where they cannot be read. Its next
request is a first one.`, nil))
	},
}

// addressFlag defines --address, and offers the default address and the sockets of proxies.
func addressFlag(cmd *cobra.Command) {
	cmd.PersistentFlags().String("address", "", "Address of the admin API, such as localhost:2019 or unix//run/caddy/admin.sock")
	completeBy(cmd, "address", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		sockets, _ := admin.Sockets(caddy.AppDataDir()) // the default stays
		return append([]string{caddy.DefaultAdminListen}, sockets...), cobra.ShellCompDirectiveNoFileComp
	})
}

// providerFlag defines --provider.
func providerFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().Var(new(oneValue), "provider", usage)
	completeBy(cmd, "provider", completeProviders)
}

// takesIDs is the usage of a command with keys or delivery IDs, of which some start with a dash like
// flags.
const takesIDs = " <key or delivery ID>..."

// oneValue is the value of a flag that may not repeat: the last of two filters alone would select other
// keys.
type oneValue struct {
	text string
	set  bool
}

// String implements [pflag.Value].
func (v *oneValue) String() string { return v.text }

// Set implements [pflag.Value].
func (v *oneValue) Set(text string) error {
	if v.set {
		return fmt.Errorf("it takes one value, and has %q already", v.text)
	}
	*v = oneValue{text, true}
	return nil
}

// Type implements [pflag.Value].
func (v *oneValue) Type() string { return "string" }
