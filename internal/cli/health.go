package cli

import (
	"context"
	"fmt"
	"net/http"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

var healthCommand = caddycmd.Command{
	Name:  "health",
	Usage: "[--live] [--timeout <duration>]",
	Short: "Checks whether a caddy-dedup is ready",
	Long: `
Asks a running caddy-dedup whether its stores answer, by its admin API, which it
finds as the command keys does. It is for where nothing else can ask: the
HEALTHCHECK of a container without a shell, or a script.

A store that can be read and refuses writes is ready, because it can still
replay; standard error says why it refuses them, and since when.

With --live it asks only whether the process answers.

Exit status: 0 ready; 1 not ready, with the reason on standard error; 2 wrong
usage.`,
	CobraFunc: func(cmd *cobra.Command) {
		cmd.Args = cobra.ArbitraryArgs // cobra's own error would end with status 1
		cmd.RunE = runE(health)
		cmd.ValidArgsFunction = cobra.NoFileCompletions
		setUp(cmd)
		addressFlag(cmd)
		cmd.Flags().Bool("live", false, "Ask only whether the process answers, not its stores")
		// Shorter than the timeouts of usual callers, which would otherwise see no reason.
		cmd.Flags().Duration("timeout", 3*time.Second, "How long to wait for the answer")
		complete(cmd, "timeout", "1s", "3s", "10s")
	},
}

// health asks whether a caddy-dedup is ready. Each failure counts as not ready.
func health(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return wrongUsage("health takes no argument such as %q", args[0])
	}
	timeout, _ := cmd.Flags().GetDuration("timeout")
	if timeout <= 0 {
		return wrongUsage("--timeout %s is not accepted; it is a duration from 1ms on, such as 3s", timeout)
	}
	all := cmd.Context()
	ctx, cancel := context.WithTimeout(all, timeout)
	defer cancel()
	cmd.SetContext(ctx)
	err := askHealth(cmd)
	if err == nil || exitStatus(err) == exitUsage {
		return err
	}
	if ctx.Err() != nil && all.Err() == nil {
		err = fmt.Errorf("not answered within %s: %w", timeout, err)
	}
	return exitError{exitFailed, err} // the one status for "unhealthy" of a container's probe
}

// askHealth asks the process for its liveness, or for its stores, and prints the answer.
func askHealth(cmd *cobra.Command) error {
	client, err := findAdmin(cmd)
	if err != nil {
		return err
	}
	if live, _ := cmd.Flags().GetBool("live"); live {
		if err := client.isOurs(cmd.Context()); err != nil {
			return err
		}
		fmt.Fprintln(cmd.OutOrStdout(), "live")
		return nil
	}
	var answer admin.ReadyAnswer
	if err := client.do(cmd.Context(), http.MethodGet, admin.ReadyPath, nil, &answer); err != nil {
		return err
	}
	for _, store := range answer.Stores {
		fmt.Fprintln(cmd.OutOrStdout(), "ready:", printable(store.Store))
	}
	warnOfStores(cmd, answer.Stores)
	return nil
}

// warnOfStores names the stores that refuse writes, or are not ready, on standard error.
func warnOfStores(cmd *cobra.Command, stores []admin.Readiness) {
	for _, store := range stores {
		switch {
		case !store.Ready:
			fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s is not ready: %s\n", printable(store.Store), printable(store.Error))
		case store.Writes != "":
			fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s refuses writes: %s\n", printable(store.Store), printable(store.Writes))
		}
	}
}
