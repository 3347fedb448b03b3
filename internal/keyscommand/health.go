package keyscommand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// What the command says of itself.
const (
	HealthUsage = "[--live] [--timeout <duration>] [--address <address>]"
	HealthShort = "Says by its exit status whether a caddy-dedup is ready"
	HealthLong  = `
Asks a running caddy-dedup whether its stores answer, by its admin API, as
'caddy-dedup keys' finds it. It is for where nothing else can ask: the HEALTHCHECK
of a container without a shell, or a script.

With --live it asks only whether the process answers.

Exit status: 0 ready; 1 not ready, with the reason on standard error; 2 wrong usage.`
)

// healthTimeout limits the whole question. A probe that takes longer than its caller
// waits would say nothing.
const healthTimeout = 3 * time.Second

// SetUpHealth makes a command the one that probes ask.
func (p Program) SetUpHealth(cmd *cobra.Command) {
	cmd.Args = cobra.ArbitraryArgs // else Cobra's own error would end with status 1
	cmd.RunE = p.ending((*call).health)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	p.addressFlag(cmd)
	cmd.Flags().Bool("live", false, "Ask only whether the process answers, not its stores")
	cmd.Flags().Duration("timeout", healthTimeout, "How long to wait for the answer")
	complete(cmd, "timeout", []string{"1s", "3s", "10s"})
}

// health asks whether a caddy-dedup is ready. Whatever went wrong, it is not.
func (c *call) health() error {
	if len(c.args) > 0 {
		return wrongUsage("health takes no argument such as %q", c.args[0])
	}
	timeout, err := c.Flags().GetDuration("timeout")
	if err != nil || timeout <= 0 {
		return wrongUsage("--timeout %s is not accepted; it is a duration from 1ms on, such as 3s", timeout)
	}
	ctx, cancel := context.WithTimeout(c.Context(), timeout)
	defer cancel()
	err = c.ask(ctx)
	if exit, ok := errors.AsType[exitError](err); err == nil || ok && exit.status == exitUsage {
		return err
	}
	if ctx.Err() != nil && c.Context().Err() == nil {
		err = fmt.Errorf("not answered within %s: %w", timeout, err)
	}
	return exitError{exitNotFound, err} // 1: the one status for "unhealthy" of a container's probe
}

// ask asks the process, or its stores, and prints who has answered.
func (c *call) ask(ctx context.Context) error {
	address, err := c.address()
	if err != nil {
		return err
	}
	client, err := c.program.findAdmin(ctx, address)
	if err != nil {
		return err
	}
	if c.is("live") {
		if err := client.isOurs(ctx); err != nil {
			return err
		}
		fmt.Fprintln(&c.out, "live")
		return nil
	}
	var answer admin.ReadyAnswer
	if err := client.do(ctx, http.MethodGet, admin.ReadyPath, nil, &answer); err != nil {
		return err
	}
	for _, store := range answer.Stores {
		fmt.Fprintln(&c.out, "ready:", printable(store.Store))
	}
	return nil
}
