package keyscommand

import (
	"bufio"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func (p Program) showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show" + takesIDs,
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
	cmd.Flags().Var(new(Once), "provider", "Only delivery IDs of this provider, such as github")
	complete(cmd, "provider", providerNames())
}

func (c *call) show() error {
	n, err := c.named()
	if err != nil {
		return err
	}
	failed := n.failed
	print := c.printer()
	for _, record := range n.found {
		if c.is("body") {
			if record, err = n.client.withBody(c.Context(), record); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", record.Key, err))
			}
		}
		print.whole(record)
	}
	print.done()
	return worst(failed)
}

// named are the records that the arguments of a command name.
type named struct {
	client *adminClient
	found  []admin.Record
	// failed says of which arguments there is no record, or nobody knows.
	failed error
	// unasked says that nobody knows it of some.
	unasked bool
}

// named finds the records that the arguments name. An argument that nobody can answer for
// does not keep the others from being found.
func (c *call) named() (*named, error) {
	if len(c.args) == 0 {
		return nil, wrongUsage("%s takes keys or delivery IDs, and there are none", c.Name())
	}
	for i, arg := range c.args {
		if arg == "" {
			return nil, wrongUsage("argument %d is empty; it is a key or a delivery ID", i+1)
		}
	}
	provider := c.text("provider")
	if provider == "" && c.Flags().Changed("provider") {
		return nil, wrongUsage("--provider is empty; it is the name of a provider or a prefix, such as github")
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	n := &named{client: client}
	seen := make(map[string]bool)
	var unknown []string
	for _, arg := range c.args {
		records, passedOver, err := client.find(c.Context(), arg, provider)
		if exit, ok := errors.AsType[exitError](err); ok && exit.status == exitUsage {
			return nil, err
		}
		if err != nil {
			n.failed, n.unasked = errors.Join(n.failed, fmt.Errorf("%q: %w", arg, err)), true
		} else if len(records) == 0 {
			unknown = append(unknown, strconv.Quote(arg))
		}
		for _, store := range passedOver {
			if !seen[store.Store] {
				seen[store.Store] = true
				n.failed = errors.Join(n.failed, notAsked(store))
			}
		}
		for _, record := range records {
			if name := record.Key + " " + record.Store; !seen[name] {
				seen[name] = true
				n.found = append(n.found, record)
			}
		}
	}
	if len(unknown) > 0 {
		of := ""
		if provider != "" {
			of = " of " + provider
		}
		n.failed = errors.Join(n.failed, exitError{exitNotFound, fmt.Errorf("there is no key and no delivery ID %s%s", strings.Join(unknown, ", "), of)})
	}
	return n, nil
}

// changeCommand is a command that does something to each key.
func (p Program) changeCommand(name, short, done, method, action, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   name + takesIDs,
		Short: short,
		Long:  long + "\n\nIt is refused while a run is in flight under the key, and where the key has\nchanged since the command looked. More than one key are changed only with\n--yes, or after a question.",
		Args:  cobra.ArbitraryArgs,
		RunE: p.ending(func(c *call) error {
			return c.change(done, func(client *adminClient, seen admin.Record) error {
				return client.do(c.Context(), method, admin.KeysPath+seen.Key+action+"?"+asSeen(seen).Encode(), nil, nil)
			})
		}),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolP("yes", "y", false, "Do not ask before more than one key is changed")
	addProviderFlag(cmd)
	return cmd
}

// asSeen says which record is meant: what has changed since is not.
func asSeen(r admin.Record) url.Values {
	seen := url.Values{admin.ParamState: {r.State}}
	if r.ExecutionID != "" {
		seen.Set(admin.ParamExecutionID, r.ExecutionID)
	}
	return seen
}

// change does something to each of the records that are named. One request is for all stores
// that have what was seen: where two have it, because one Redis has two names in the
// configuration, or because neither can be read, another request would find it changed.
func (c *call) change(done string, change func(*adminClient, admin.Record) error) error {
	n, err := c.named()
	if err != nil {
		return err
	}
	if n.unasked {
		return c.changeNothing(n)
	}
	if len(n.found) > 1 && !c.is("yes") {
		if err := c.confirm(n.found); err != nil {
			return err
		}
	}
	print := c.printer()
	failed := n.failed
	asked := make(map[string]error) // by what it was about
	for _, record := range n.found {
		about := record.Key + " " + record.State + " " + record.ExecutionID
		err, was := asked[about]
		if !was {
			err = change(n.client, record)
			asked[about] = err
		}
		switch {
		case err == nil:
			print.changed(done, record, inSeveralStores(n.found))
		case !was:
			failed = errors.Join(failed, fmt.Errorf("%s: %w", record.Key, err))
		}
	}
	print.done()
	return worst(failed)
}

// changeNothing names what was found where a store did not answer: perhaps it has more of
// what is meant.
func (c *call) changeNothing(n *named) error {
	if len(n.found) == 0 {
		return worst(errors.Join(n.failed, errors.New("nothing was changed")))
	}
	c.tell(n.found)
	return worst(errors.Join(n.failed, errors.New("nothing was changed; the keys above were found, and a key in hex can be named alone")))
}

// inSeveralStores reports whether a key is in more than one store: then only the store
// tells its records apart.
func inSeveralStores(records []admin.Record) bool {
	seen := make(map[string]bool)
	for _, r := range records {
		if seen[r.Key] {
			return true
		}
		seen[r.Key] = true
	}
	return false
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

// tell lists records on the side of the output.
func (c *call) tell(records []admin.Record) {
	table := newTable(c.ErrOrStderr())
	table.stores = inSeveralStores(records)
	for _, record := range records {
		table.row(record)
	}
	table.done()
}

// confirm asks whether all these keys are meant.
func (c *call) confirm(found []admin.Record) error {
	c.tell(found)
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
