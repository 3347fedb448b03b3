// Package keyscommand has the commands that ask the admin API of a running caddy-dedup:
// keys, with which operators list, show, release and forget keys, and health, with
// which probes ask whether it is ready. It knows nothing of Caddy.
package keyscommand

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// What the command says of itself.
const (
	Usage = "list|show|release|forget"
	Short = "Lists and shows keys, releases and forgets them"
	Long  = `
Asks a running caddy-dedup about its keys, by its admin API. A key is named by
its 64 hex digits, as in the log, or by the delivery ID that the sender knows.

The admin API is that of --address, else of $CADDY_ADMIN, else at Caddy's
default, localhost:2019, else at the socket in the data directory where
'caddy-dedup proxy' puts it.

Exit status: 0 done; 1 not found, or refused because a run is in flight or the
key has changed since the command looked; 2 wrong usage, or not confirmed;
3 no answer, from the admin API or a store, or nowhere to print.`
)

// Program is what the commands are told of the program that they are part of.
type Program struct {
	// DefaultAddress is where the admin API listens if --address does not say otherwise.
	// It is that of $CADDY_ADMIN, if that is set.
	DefaultAddress func() string
	// Directory is where proxies have the sockets of their admin APIs.
	Directory func() string
	// ParseAddress reads the address of an admin API.
	ParseAddress func(text string) (Address, error)
	// Exit returns the error with which a command ends with a status of more than 1, when
	// all is said.
	Exit func(cmd *cobra.Command, status int) error
}

// Address is where an admin API listens, as [net.Dial] takes it.
type Address struct {
	Network, Address string
	// Socket says that it is a unix socket.
	Socket bool
}

// SetUp makes a command the one for keys, with commands of its own.
func (p Program) SetUp(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs // else Cobra's own error would end with status 1
	cmd.RunE = p.ending(func(c *call) error {
		if len(c.args) == 0 {
			return c.Help()
		}
		return wrongUsage("%q is no command; accepted are list, show, release and forget", c.args[0])
	})
	p.addressFlag(cmd)
	cmd.PersistentFlags().Bool("json", false, "Print one JSON object a line")
	cmd.AddCommand(p.listCommand(), p.showCommand(),
		p.changeCommand("release", "Releases keys: the next request runs", "released", http.MethodPost, "/release", `
Releases a held, complete or exhausted key: its next request runs. The record
keeps its history, and the allowed attempts begin anew.`),
		p.changeCommand("forget", "Forgets keys", "forgotten", http.MethodDelete, "", `
Removes a key and its kept response, also where they cannot be read. Its next
request is a first one.`))
}

// addressFlag says where the admin API is, and whatever is wrong with a flag is wrong usage.
func (p Program) addressFlag(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if strings.HasSuffix(cmd.Use, takesIDs) && strings.HasPrefix(err.Error(), "unknown ") {
			err = fmt.Errorf("%w; if it is an ID, write -- before it: %s -- <ID>", err, cmd.CommandPath())
		}
		return p.ending(func(*call) error { return wrongUsage("%w", err) })(cmd, nil)
	})
	cmd.PersistentFlags().Var(new(Once), "address", "Address of the admin API, such as localhost:2019 or unix//run/caddy/admin.sock")
	completeBy(cmd, "address", p.completeAddress)
}

// takesIDs is how a command says that it takes keys or delivery IDs. Some begin with a dash,
// as flags do.
const takesIDs = " <key or delivery ID>..."

// The exit statuses of the command, for scripts.
const (
	exitNotFound = 1
	exitUsage    = 2
	exitNoAnswer = 3
)

// exitError is an error with the exit status that it means.
type exitError struct {
	status int
	error
}

// Unwrap returns the error itself.
func (e exitError) Unwrap() error { return e.error }

func wrongUsage(format string, arguments ...any) error {
	return exitError{exitUsage, fmt.Errorf(format, arguments...)}
}

// call is one call of a command.
type call struct {
	*cobra.Command
	program Program
	args    []string
	out     output
}

// output is what a command prints to, and the first error of printing.
type output struct {
	to  io.Writer
	err error
}

// Write implements [io.Writer].
func (o *output) Write(text []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	var n int
	n, o.err = o.to.Write(text)
	return n, o.err
}

// ending makes a command end with the status of its error. Caddy's own way would log
// the error, and would end a status of 1 with it.
func (p Program) ending(run func(*call) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c := &call{cmd, p, args, output{to: cmd.OutOrStdout()}}
		err := run(c)
		if c.out.err != nil {
			err = worst(errors.Join(err, exitError{exitNoAnswer, fmt.Errorf("not all could be printed: %w", c.out.err)}))
		}
		if err == nil {
			return nil
		}
		cmd.SilenceErrors = true
		fmt.Fprintln(cmd.ErrOrStderr(), "Error:", printableLines(err.Error()))
		exit, ok := errors.AsType[exitError](err)
		if !ok || exit.status == exitNotFound {
			return err
		}
		return p.Exit(cmd, exit.status)
	}
}

func (c *call) text(flag string) string {
	text, _ := c.Flags().GetString(flag) // it is defined
	return text
}

func (c *call) is(flag string) bool {
	is, _ := c.Flags().GetBool(flag) // it is defined
	return is
}

func (c *call) client() (*adminClient, error) {
	address, err := c.address()
	if err != nil {
		return nil, err
	}
	return c.program.findAdmin(c.Context(), address)
}

// listFlags are the filters of the admin API, as flags.
var listFlags = []struct {
	name, parameter, usage string
	values                 func() []string // that are offered to the shell
}{
	{"provider", admin.ParamProvider, "Only keys of this provider, such as github", providerNames},
	{"delivery-id", admin.ParamDeliveryID, "Only keys of this delivery ID", nothing},
	{"execution-id", admin.ParamExecutionID, "Only the key of this execution", nothing},
	{"path", admin.ParamPath, "Only keys of requests to this path, as the client sent it", nothing},
	{"older-than", admin.ParamOlderThan, "Only keys that were claimed longer ago than this, such as 15m or 7d", durations},
	{"newer-than", admin.ParamNewerThan, "Only keys that were claimed within this time, such as 1d", durations},
	{"cursor", admin.ParamCursor, "Where to go on, as a list before has said", nothing},
}

func (p Program) listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Lists keys",
		Long:  "\nLists keys with their state, by all filters that are given.",
		Args:  cobra.ArbitraryArgs,
		RunE:  p.ending((*call).list),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringArray("state", nil, "Only keys in this state: "+strings.Join(admin.States, ", ")+"; may be repeated")
	for _, flag := range listFlags {
		cmd.Flags().Var(new(Once), flag.name, flag.usage)
		complete(cmd, flag.name, flag.values())
	}
	cmd.Flags().Var(&count{n: admin.DefaultKeys}, "limit", "How many keys to list at most")
	complete(cmd, "limit", nil)
	complete(cmd, "state", admin.States)
	return cmd
}

// Once is the value of a flag that stands once: of two, as of a filter that is meant to list
// the keys of both, none is dropped in silence.
type Once struct {
	Text  string
	Given bool // not only a default
}

func (o *Once) String() string { return o.Text }

// Type is what the help calls the value.
func (*Once) Type() string { return "string" }

// Set reads the value of the flag.
func (o *Once) Set(text string) error {
	if o.Given {
		return fmt.Errorf("it was given before, as %q, and takes one value", o.Text)
	}
	o.Text, o.Given = text, true
	return nil
}

// count is a number of things, as a flag that stands once.
type count struct {
	n     int
	given bool
}

func (c *count) String() string { return strconv.Itoa(c.n) }

// Type is what the help calls the value.
func (*count) Type() string { return "number" }

// Set reads the value of the flag.
func (c *count) Set(text string) error {
	if c.given {
		return fmt.Errorf("it was given before, as %d, and takes one value", c.n)
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("it is a number from 1 on")
	}
	c.n, c.given = number, true
	return nil
}

// complete offers the values of a flag to the shell, and never the names of files.
func complete(cmd *cobra.Command, flag string, values []string) {
	completeBy(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func completeBy(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic("keyscommand: completing a flag that is not defined: " + err.Error())
	}
}

// completeAddress offers where the admin API is by default, and the sockets of proxies.
func (p Program) completeAddress(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	sockets, _ := admin.Sockets(p.Directory()) // without them there is still the default
	return append([]string{p.DefaultAddress()}, sockets...), cobra.ShellCompDirectiveNoFileComp
}

func nothing() []string { return nil }

// durations are some, for the shell.
func durations() []string { return []string{"1m", "15m", "1h", "1d", "7d"} }

func providerNames() []string {
	var names []string
	for _, p := range delivery.Providers() {
		names = append(names, p.Name)
	}
	return names
}

func (c *call) list() error {
	if len(c.args) > 0 {
		return wrongUsage("list takes no argument such as %q; `keys show` shows one key", c.args[0])
	}
	limit := c.Flags().Lookup("limit").Value.(*count).n
	if limit < 1 {
		return wrongUsage("--limit %d is not accepted; it is a number from 1 on", limit)
	}
	states, err := c.Flags().GetStringArray("state")
	if err != nil {
		return err
	}
	// Of a single empty one, pflag makes none, which would list the keys in all states.
	if c.Flags().Changed("state") && len(states) == 0 || slices.Contains(states, "") {
		return wrongUsage("--state is empty; leave it out, or give it a value")
	}
	query := url.Values{admin.ParamState: states}
	for _, flag := range listFlags {
		switch text := c.text(flag.name); {
		case text != "":
			query.Set(flag.parameter, text)
		case c.Flags().Changed(flag.name):
			return wrongUsage("--%s is empty; leave it out, or give it a value", flag.name)
		}
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	print := c.printer()
	next, err := client.list(c.Context(), query, limit, print.row)
	print.done()
	if exit, ok := errors.AsType[exitError](err); next != "" && (!ok || exit.status != exitUsage) {
		fmt.Fprintf(c.ErrOrStderr(), "There are more; go on with --cursor %s\n", next)
	}
	return err
}
