package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func (a *app) machineHostKeyCommand() *cobra.Command {
	cmd := group("host-key", "By which SSH host keys a machine is known", a.hostKeyShowCommand(), a.hostKeyAcceptCommand())
	cmd.Long = `A machine is known by the host keys that its provider attests, that were put on it when it was created, that were seen at first contact
(where that is allowed), that its installed system was given or has told, or that a person accepted. Another key is refused, and nothing is
sent to that host, until somebody accepts it.`
	return cmd
}

func (a *app) hostKeyShowCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "show MACHINE",
		Short:             "Show the known host keys, and the one that was refused",
		Example:           `  ironherd machine host-key show herd-0007`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeMachines),
	}
	return question(a, cmd, func(ctx context.Context, client fleetClient, args []string) (*fleetv1.GetHostKeysResponse, error) {
		return client.GetHostKeys(ctx, &fleetv1.GetHostKeysRequest{Machine: args[0]})
	}, showHostKeys)
}

func showHostKeys(w *screen, r *fleetv1.GetHostKeysResponse) {
	var rows [][]string
	for _, k := range r.GetKnown() {
		rows = append(rows, []string{k.GetFingerprint(), r.GetSource(), instant(r.GetSince())})
	}
	if k := r.GetRefused(); k != nil {
		rows = append(rows, []string{k.GetFingerprint(), "refused", instant(r.GetRefusedAt())})
	}
	w.table([]string{"FINGERPRINT", "FROM", "SINCE"}, rows)
}

func (a *app) hostKeyAcceptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "accept MACHINE FINGERPRINT",
		Short: "Accept the host key that a machine has shown",
		Long: `Accept makes the key that was refused the one that the machine is known by. Compare the fingerprint with what the machine's console
or its provider says: accepting the key of somebody in between hands them the machine.`,
		Example: `  ironherd machine host-key show herd-0007
  ironherd machine host-key accept herd-0007 SHA256:OUOvNv5rkEw/YC6sBk2muPHRUDuXrzo3JbmIezdPW8Q --reason "reinstalled by hand"
  ironherd machine host-key accept herd-0007 SHA256:OUOvNv5rkEw/YC6sBk2muPHRUDuXrzo3JbmIezdPW8Q --reason "reinstalled by hand" -o json`,
		Args:              exactly,
		ValidArgsFunction: firstArgument(a.completeMachines),
	}
	return a.withReason(cmd, reasonUsage, func(ctx context.Context, client fleetClient, args []string, reason string) (proto.Message, string, error) {
		request := &fleetv1.AcceptHostKeyRequest{Machine: args[0], Fingerprint: args[1], Reason: reason}
		_, err := client.AcceptHostKey(ctx, request)
		return request, fmt.Sprintf("%s is known by %s now", args[0], args[1]), err
	})
}
