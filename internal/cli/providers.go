package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/signature"
)

var providersCommand = caddycmd.Command{
	Name:  "providers",
	Usage: "[<name>]",
	Short: "Prints the providers of webhooks that dedup knows by name",
	Long: `
Prints the names that the dedup directive and proxy --provider accept, with
what each provider's key is made of, what it adds to the scope, how long its
responses are kept, whether that was read in the provider's documentation,
whether it needs a route of its own, and whether verify can check its
signatures.

With a name it prints all that is known of that provider.`,
	CobraFunc: func(cmd *cobra.Command) {
		cmd.Args = cobra.MaximumNArgs(1)
		cmd.ValidArgsFunction = completeProviders
		setUp(cmd)
		cmd.RunE = runE(func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				printProviders(cmd.OutOrStdout())
				return nil
			}
			return printProvider(cmd.OutOrStdout(), args[0])
		})
	},
}

// completeProviders offers the names of providers to the shell, with their titles.
func completeProviders(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var names []string
	for _, p := range delivery.Providers() {
		names = append(names, cobra.CompletionWithDesc(p.Name, p.Title))
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// printProviders writes the catalogue as a table.
func printProviders(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tDOCUMENTED\tROUTE\tVERIFY\tRETENTION\tSCOPE\tKEY") // the key last: some are long
	for _, p := range delivery.Providers() {
		documented := "no"
		if p.Documented() {
			documented = "yes"
		}
		route := "any"
		if p.Matcher() != "" {
			route = "own"
		}
		scope := cmp.Or(strings.Join(p.Scope(), ", "), "-")
		signed, _ := signature.ProviderNamed(p.Name)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, documented, route, cmp.Or(verifies[signed.ID], "partly"), p.RetentionText(), scope, p.Key())
	}
	_ = table.Flush() // the output keeps the error
	fmt.Fprintf(w, "\nROUTE own: %s, as in dedup /webhooks/adyen adyen\n"+
		"VERIFY id: the delivery ID is signed; body: it is not, so that a captured request can be sent again under another; partly: see its entry; secret: a static secret is compared\n", ownRoute)
}

// verifies says in a word what verify checks of a provider, by what its signature covers of the ID.
var verifies = map[string]string{"": "no", "no": "body", "nothing is signed": "secret", "yes": "id"}

// ownRoute says what a provider needs that claims by members of the body alone.
const ownRoute = "a site's own JSON could be taken for its deliveries; give it a path of its own"

// printProvider writes all that the catalogue says of one provider.
func printProvider(w io.Writer, name string) error {
	p, ok := delivery.ProviderNamed(name)
	if !ok {
		return delivery.UnknownProvider(name)
	}
	var passes []string
	for _, pass := range p.Passes {
		passes = append(passes, pass.String())
	}
	route := ""
	if matcher := p.Matcher(); matcher != "" {
		route = ownRoute + ": " + matcher
	}
	claims := ""
	if signs := p.Signs.String(); signs != "" {
		claims = "requests " + signs
	}
	signed, _ := signature.ProviderNamed(name)
	verify, within := "no: "+signed.Reason, ""
	if signed.Reason == "" {
		verify = signed.How()
	}
	if signed.Within > 0 {
		within = caddymodule.ShortDuration(signed.Within)
	}
	printFields(w, []field{
		{"name", p.Name},
		{"title", p.Title},
		{"mode", string(delivery.ModeWebhook)},
		{"key", p.Key()},
		{"claims", claims},
		{"route", route},
		{"scope", strings.Join(append([]string{"host", "path"}, p.Scope()...), ", ")},
		{"retention", p.RetentionText()},
		{"passes", cmp.Or(strings.Join(passes, ", or "), "none of its requests")},
		{"fact", p.Provenance()},
		{"note", p.Note},
		{"verify", verify},
		{"signs ID", signed.ID},
		{"within", within},
		{"handshake", signed.Handshake},
		{"source", signed.Source},
		{"remark", signed.Note},
	})
	return nil
}
