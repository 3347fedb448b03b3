package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

func listCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Lists keys",
		Long: `
Lists the newest keys of all stores, by all filters that are given: first the
records that cannot be read, then the newest claims. It reads all keys, which
takes a while in a large store. Standard error names each store that can be
read and refuses writes, and why.`,
		Args: cobra.ArbitraryArgs,
		RunE: runE(list),

		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringSlice(admin.ParamState, nil, "Only keys in this state: "+strings.Join(admin.States, ", ")+"; may be repeated")
	complete(cmd, admin.ParamState, admin.States...)
	providerFlag(cmd, "Only keys of this provider, such as github")
	text := func(flag, usage string, offered ...string) {
		cmd.Flags().Var(new(oneValue), flag, usage)
		complete(cmd, flag, offered...)
	}
	text("delivery-id", "Only keys of this delivery ID")
	text("execution-id", "Only the key of this execution")
	text("path", "Only keys of requests to this path, as the client sent it")
	text("status", "Only keys whose last answer had this status, such as 422 or 4xx", "422", "4xx", "5xx")
	text("older-than", "Only keys that were claimed longer ago than this, such as 15m or 7d", "15m", "1h", "1d")
	text("newer-than", "Only keys that were claimed within this time, such as 1d", "15m", "1h", "1d")
	cmd.Flags().Int(admin.ParamLimit, admin.DefaultKeys, "How many keys to list at most")
	complete(cmd, admin.ParamLimit)
	cmd.Flags().Bool("all", false, "List every key, in the order of the stores, as they are read")
	cmd.Flags().Bool("wide", false, "Show all that is known of each key, and cut nothing")
	return cmd
}

func list(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUsage("list takes no argument such as %q; `keys show` shows one key", args[0])
	}
	flags := cmd.Flags()
	limit, _ := flags.GetInt(admin.ParamLimit)
	if limit < 1 {
		return wrongUsage("--limit %d is not accepted; it must be at least 1", limit)
	}
	all, _ := flags.GetBool("all")
	if all && flags.Changed(admin.ParamLimit) {
		return wrongUsage("--all lists every key, and --limit only the newest; choose one of them")
	}
	states, _ := flags.GetStringSlice(admin.ParamState)
	query := url.Values{admin.ParamState: states}
	wanted := ""
	for _, state := range states {
		wanted += " --state " + state
	}
	flags.Visit(func(flag *pflag.Flag) {
		if _, is := flag.Value.(*oneValue); is {
			query.Set(strings.ReplaceAll(flag.Name, "-", "_"), flag.Value.String())
			wanted += fmt.Sprintf(" --%s %q", flag.Name, flag.Value)
		}
	})
	client, err := findAdmin(cmd)
	if err != nil {
		return err
	}
	print := newPrinter(cmd)
	newest := &newest{limit: limit}
	progress := io.Discard // or a terminal, where it is cleared before other lines
	if isTerminal(cmd.ErrOrStderr()) {
		progress = cmd.ErrOrStderr()
	}
	const clearLine = "\r\x1b[K"
	seen, found := 0, 0
	err = client.walk(cmd.Context(), query, func(page admin.Page) {
		fmt.Fprint(progress, clearLine)
		seen += page.Seen
		found += len(page.Keys)
		if !all {
			newest.add(page.Keys)
		} else if len(page.Keys) > 0 {
			print.rows(page.Keys, true)
		}
		if page.Next != "" {
			fmt.Fprintf(progress, "%d keys are read, %d match", seen, found)
		}
	})
	fmt.Fprint(progress, clearLine)
	if records := newest.sorted(); len(records) > 0 {
		print.rows(records, false)
	}
	if newest.more {
		fmt.Fprintln(cmd.ErrOrStderr(), "There are more keys; list them with a higher --limit, or with --all")
	}
	if provider := query.Get(admin.ParamProvider); err == nil && found == 0 && provider != "" {
		// Only an answer that has read all keys refuses an unknown provider.
		err = client.do(cmd.Context(), http.MethodGet, admin.ListPath+"?"+url.Values{admin.ParamProvider: {provider}, admin.ParamLimit: {"1"}}.Encode(), nil, new(admin.Page))
	}
	if err == nil {
		var ready admin.ReadyAnswer
		if problem, is := errors.AsType[*admin.Problem](client.do(cmd.Context(), http.MethodGet, admin.ReadyPath, nil, &ready)); is {
			ready.Stores = problem.Stores
		}
		warnOfStores(cmd, ready.Stores)
	}
	json, _ := flags.GetBool("json")
	switch {
	case err == nil && found == 0 && !json:
		fmt.Fprintf(cmd.ErrOrStderr(), "0 keys match%s\n", wanted)
	case err != nil && found > 0:
		err = fmt.Errorf("the list is incomplete: %w", err)
	}
	return err
}

// newest keeps the newest of many records.
type newest struct {
	limit   int
	records []admin.Record
	more    bool // there are others
}

func (n *newest) add(records []admin.Record) {
	n.records = append(n.records, records...)
	if len(n.records)/2 >= n.limit {
		n.sorted()
	}
}

// sorted returns the unreadable records and then the newest claims. If a store has listed a key twice, the
// later record counts.
func (n *newest) sorted() []admin.Record {
	seen := make(map[[2]string]bool)
	slices.Reverse(n.records)
	n.records = slices.DeleteFunc(n.records, func(r admin.Record) bool {
		name := [2]string{r.Key, r.Store}
		twice := seen[name]
		seen[name] = true
		return twice
	})
	slices.SortFunc(n.records, func(a, b admin.Record) int {
		return cmp.Or(
			cmp.Compare(readable(a), readable(b)), b.Claimed.Compare(a.Claimed), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Store, b.Store),
		)
	})
	if len(n.records) > n.limit {
		n.more = true
		n.records = slices.Delete(n.records, n.limit, len(n.records))
	}
	return n.records
}

func readable(r admin.Record) int {
	if r.State == admin.StateUnreadable {
		return 0
	}
	return 1
}

// isTerminal reports whether w is a terminal. Tests replace it.
var isTerminal = func(w io.Writer) bool {
	file, is := w.(*os.File)
	return is && term.IsTerminal(int(file.Fd()))
}
