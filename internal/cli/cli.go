// Package cli has the commands that caddy-dedup adds to Caddy: proxy runs the Caddyfile that
// its flags stand for, keys and health ask the admin API of a running process, and providers
// prints the catalogue.
package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const docs = "https://github.com/caddy-dedup/caddy-dedup/tree/main/docs"

// Commands returns the subcommands of `dedup`, the one command that a build of Caddy gains.
// The binary caddy-dedup has them at its top level too.
func Commands() []caddycmd.Command {
	return []caddycmd.Command{proxyCommand, keysCommand, providersCommand, healthCommand}
}

func init() {
	// The Caddyfile of `proxy --print` has the admin API on a socket in Caddy's data directory, which Caddy does
	// not make for it. This is not in the binary of caddy-dedup, because a Caddy that xcaddy builds runs such
	// a Caddyfile, too, also by `start`, which runs `run`.
	cobra.OnInitialize(func() {
		if len(os.Args) > 1 && os.Args[1] == "run" {
			_ = os.MkdirAll(caddy.AppDataDir(), 0o700) // if it cannot be made, Caddy says so
		}
	})
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "dedup",
		Usage: "proxy|keys|providers|health",
		Short: "Makes services idempotent, and shows the keys of requests",
		CobraFunc: func(cmd *cobra.Command) {
			for _, c := range Commands() {
				sub := &cobra.Command{Use: c.Name + " " + c.Usage, Short: c.Short, Long: c.Long}
				c.CobraFunc(sub)
				cmd.AddCommand(sub)
			}
			setUp(cmd)
		},
	})
}

// SetHelp wraps the help of a command and its subcommands at 80 columns, and links the documentation of
// caddy-dedup instead of Caddy's.
func SetHelp(cmd *cobra.Command) {
	defaults := new(cobra.Command)
	cmd.SetUsageTemplate(strings.ReplaceAll(defaults.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	cmd.SetHelpTemplate(defaults.HelpTemplate() + "\nDocumentation: " + docs + "\n")
}

// setUp sets the help of a command and its subcommands, and the exit status of wrong flags.
func setUp(cmd *cobra.Command) {
	SetHelp(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if strings.HasSuffix(cmd.Use, takesIDs) && strings.HasPrefix(err.Error(), "unknown ") {
			err = fmt.Errorf("%w; if it is an ID, write -- before it: %s -- <ID>", err, cmd.CommandPath())
		}
		return end(cmd, wrongUsage("%w", err))
	})
}

// The exit statuses of the commands, for scripts.
const (
	exitFailed   = 1 // also: not found, or not ready
	exitUsage    = 2
	exitNoAnswer = 3
)

// exitError is an error with its exit status.
type exitError struct {
	status int
	error
}

// Unwrap returns the error itself.
func (e exitError) Unwrap() error { return e.error }

func wrongUsage(format string, arguments ...any) error {
	return exitError{exitUsage, fmt.Errorf(format, arguments...)}
}

// exitStatus returns the exit status of an error: of several that are joined, the highest.
func exitStatus(err error) int {
	status := exitFailed
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			status = max(status, exitStatus(one))
		}
	} else if exit, ok := errors.AsType[exitError](err); ok {
		status = exit.status
	}
	return status
}

// output keeps the first error of writing to the output.
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

// runE runs a command and exits with the status of its error, or of an error of its output.
func runE(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		out := &output{to: cmd.OutOrStdout()}
		cmd.SetOut(out)
		err := emptyFlag(cmd)
		if err == nil {
			err = run(cmd, args)
		}
		if out.err != nil {
			err = errors.Join(err, exitError{exitNoAnswer, fmt.Errorf("writing the output: %w", out.err)})
		}
		return end(cmd, err)
	}
}

// emptyFlag refuses an empty flag, such as an unset shell variable leaves: without a filter or an address,
// the command would act on other keys.
func emptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Value.String() {
		case "", "[]", `[""]`:
			err = wrongUsage("--%s is empty; leave it out, or give it a value", flag.Name)
		}
	})
	return err
}

// end prints an error, and returns one with which Caddy's Main exits with its status. Errors contain text
// of responses, so they are escaped for the terminal.
func end(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	cmd.SilenceErrors = true
	fmt.Fprintln(cmd.ErrOrStderr(), "Error:", printableLines(err.Error()))
	status := exitStatus(err)
	if status == exitFailed {
		return err
	}
	return caddycmd.WrapCommandFuncForCobra(func(caddycmd.Flags) (int, error) { return status, nil })(cmd, nil)
}

// complete completes the values of a flag in the shell, never file names.
func complete(cmd *cobra.Command, flag string, values ...string) {
	completeBy(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func completeBy(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic("cli: completing a flag that is not defined: " + err.Error())
	}
}
