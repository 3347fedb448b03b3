// Package keyscommand has the commands that ask the admin API of a running caddy-dedup:
// keys, with which operators list and show keys, free and forget them, and health, with
// which probes ask whether it is ready. It knows nothing of Caddy.
package keyscommand

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What the command says of itself.
const (
	Usage = "list|show|release|forget"
	Short = "Lists and shows keys, frees and forgets them"
	Long  = `
Asks a running caddy-dedup about its keys, by its admin API. A key is named by
its 64 hex digits, as in the log, or by the delivery ID that the sender knows.

The admin API is that of --address, else of $CADDY_ADMIN, else at Caddy's
default, localhost:2019, else at the socket in the data directory where
'caddy-dedup proxy' puts it.

Exit status: 0 done; 1 not found, or refused because a run is in flight;
2 wrong usage, or not confirmed; 3 no answer, from the admin API or a store.`
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
		p.changeCommand("release", "Frees keys: the next request runs", "released", http.MethodPost, "/release", `
Frees a held, complete or exhausted key: its next request runs. The record
keeps its history, and the allowed attempts begin anew.`),
		p.changeCommand("forget", "Forgets keys", "forgotten", http.MethodDelete, "", `
Removes a key and its kept response, also where they cannot be read. Its next
request is a first one.`))
}

// addressFlag says where the admin API is, and whatever is wrong with a flag is wrong usage.
func (p Program) addressFlag(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return p.ending(func(*call) error { return wrongUsage("%w", err) })(cmd, nil)
	})
	cmd.PersistentFlags().String("address", "", "Address of the admin API, such as localhost:2019 or unix//run/caddy/admin.sock")
	completeBy(cmd, "address", p.completeAddress)
}

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
}

// ending makes a command end with the status of its error. Caddy's own way would log
// the error, and would end a status of 1 with it.
func (p Program) ending(run func(*call) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		err := run(&call{cmd, p, args})
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
	return c.program.findAdmin(c.Context(), c.text("address"))
}

// listFlags are the filters of the admin API, as flags.
var listFlags = []struct {
	name, parameter, usage string
	values                 func() []string // that are offered to the shell
}{
	{"provider", admin.ParamProvider, "Only keys of this provider, such as github", providerNames},
	{"delivery-id", admin.ParamDeliveryID, "Only keys of this delivery ID", nothing},
	{"execution-id", admin.ParamExecutionID, "Only the key of this execution", nothing},
	{"older-than", admin.ParamOlderThan, "Only keys that were claimed longer ago than this, such as 15m or 7d", durations},
	{"newer-than", admin.ParamNewerThan, "Only keys that were claimed since", durations},
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
		cmd.Flags().String(flag.name, "", flag.usage)
		complete(cmd, flag.name, flag.values())
	}
	cmd.Flags().Int("limit", admin.DefaultKeys, "How many keys to list at most")
	complete(cmd, "limit", nil)
	complete(cmd, "state", admin.States)
	return cmd
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
	limit, err := c.Flags().GetInt("limit")
	if err != nil || limit < 1 {
		return wrongUsage("--limit %d is not accepted; it is a number from 1 on", limit)
	}
	states, err := c.Flags().GetStringArray("state")
	if err != nil {
		return err
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
	if next != "" {
		fmt.Fprintf(c.ErrOrStderr(), "There are more; go on with --cursor %s\n", next)
	}
	return err
}

func (p Program) showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show <key or delivery ID>...",
		Short: "Shows all that is known of keys",
		Args:  cobra.ArbitraryArgs,
		RunE:  p.ending((*call).show),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Bool("body", false, "Show the kept responses, too")
	addProviderFlag(cmd)
	return cmd
}

func addProviderFlag(cmd *cobra.Command) {
	cmd.Flags().String("provider", "", "Only delivery IDs of this provider, such as github")
	complete(cmd, "provider", providerNames())
}

func (c *call) show() error {
	client, found, missing, err := c.named()
	if err != nil {
		return err
	}
	print := c.printer()
	for _, record := range found {
		if c.is("body") {
			if record, err = client.show(c.Context(), record.Key, true); err != nil {
				return err
			}
		}
		print.whole(record)
	}
	return missing
}

// named finds the records that the arguments name. The error missing names those of
// which there is none.
func (c *call) named() (client *adminClient, found []admin.Record, missing, err error) {
	if len(c.args) == 0 {
		return nil, nil, nil, wrongUsage("%s takes keys or delivery IDs, and there are none", c.Name())
	}
	for i, arg := range c.args {
		if arg == "" {
			return nil, nil, nil, wrongUsage("argument %d is empty; it is a key or a delivery ID", i+1)
		}
	}
	if client, err = c.client(); err != nil {
		return nil, nil, nil, err
	}
	seen := make(map[string]bool)
	var unknown []string
	for _, arg := range c.args {
		records, err := client.find(c.Context(), arg, c.text("provider"))
		if err != nil {
			return nil, nil, nil, err
		}
		if len(records) == 0 {
			unknown = append(unknown, strconv.Quote(arg))
		}
		for _, record := range records {
			if !seen[record.Key] {
				seen[record.Key] = true
				found = append(found, record)
			}
		}
	}
	if len(unknown) > 0 {
		missing = exitError{exitNotFound, fmt.Errorf("there is no key and no delivery ID %s", strings.Join(unknown, ", "))}
	}
	return client, found, missing, nil
}

// changeCommand is a command that does something to each key.
func (p Program) changeCommand(name, short, done, method, action, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + " <key or delivery ID>...",
		Short: short,
		Long:  long + "\n\nIt is refused while a run is in flight under the key. More than one key are\nchanged only with --yes, or after a question.",
		Args:  cobra.ArbitraryArgs,
		RunE: p.ending(func(c *call) error {
			return c.change(done, func(client *adminClient, key string) error {
				return client.do(c.Context(), method, admin.KeysPath+key+action, nil)
			})
		}),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolP("yes", "y", false, "Do not ask before more than one key is changed")
	addProviderFlag(cmd)
	return cmd
}

func (c *call) change(done string, change func(*adminClient, string) error) error {
	client, found, missing, err := c.named()
	if err != nil {
		return err
	}
	if len(found) > 1 && !c.is("yes") {
		if err := c.confirm(found); err != nil {
			return err
		}
	}
	print := c.printer()
	failed := missing
	for _, record := range found {
		if err := change(client, record.Key); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", record.Key, err))
			continue
		}
		print.changed(done, record)
	}
	return worst(failed)
}

// worst gives several errors the highest of their statuses.
func worst(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	status := exitNotFound
	for _, one := range joined.Unwrap() {
		if exit, ok := errors.AsType[exitError](worst(one)); ok {
			status = max(status, exit.status)
		}
	}
	return exitError{status, err}
}

// confirm asks whether all these keys are meant.
func (c *call) confirm(found []admin.Record) error {
	table := newTable(c.ErrOrStderr())
	for _, record := range found {
		table.row(record)
	}
	table.done()
	fmt.Fprintf(c.ErrOrStderr(), "%s these %d keys? [y/N] ", c.Name(), len(found))
	line, _ := bufio.NewReader(c.InOrStdin()).ReadString('\n') // at its end nobody has said yes
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	default:
		fmt.Fprintln(c.ErrOrStderr())
		return wrongUsage("%d keys are named and nothing was changed; --yes changes them all", len(found))
	}
}

// isKey reports whether an argument is a key in hex.
func isKey(text string) bool {
	_, err := idempotency.ParseKey(text)
	return err == nil
}
