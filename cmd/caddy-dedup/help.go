package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/internal/cli"
)

const long = `
$ caddy-dedup proxy --from :8080 --to localhost:3000

makes one HTTP service idempotent: a request or a webhook that comes twice runs
once, and its duplicates get the response of the first. The command keys shows
what happened to them.

caddy-dedup is Caddy with the handler dedup, and does all that Caddy does:

$ caddy-dedup run --config Caddyfile`

// helpCommand prints the help of the program. Only a command reaches Caddy's root command.
const helpCommand = "about"

// registerCommands adds the subcommands of `dedup` at the top level, and the program's help.
func registerCommands() {
	own := make(map[string]bool)
	for _, command := range cli.Commands() {
		caddycmd.RegisterCommand(command)
		own[command.Name] = true
	}
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  helpCommand,
		Short: "Prints the help of caddy-dedup",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.Hidden = true
			cmd.RunE = func(cmd *cobra.Command, _ []string) error {
				root := cmd.Root()
				root.Long, root.Example = long, ""
				root.AddGroup(&cobra.Group{ID: "own", Title: "Commands of caddy-dedup:"}, &cobra.Group{ID: "caddy", Title: "Commands of Caddy:"})
				cobra.EnableCommandSorting = false // proxy comes first
				for _, c := range root.Commands() {
					c.GroupID = "caddy"
					if own[c.Name()] {
						c.GroupID = "own"
					}
					c.Hidden = c.Hidden || c.Name() == "dedup" // all that it has is here
				}
				cli.SetHelp(root)
				return root.Help()
			}
		},
	})
}
