package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironherd/ironherd/internal/fleet"
)

// configured is the key under which the context of a client has its Config.
type configured struct{}

// Failed returns the error for what could not be done in etcd. For a request that was not answered
// in time it is failure.Timeout and says of each endpoint what is wrong with it, which the client's
// own error does not. It takes at most two seconds to find that out.
func Failed(ctx context.Context, client *clientv3.Client, what string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && status.Code(err) != codes.Unavailable {
		return fmt.Errorf("%s: %w", what, err)
	}
	config, ok := client.Ctx().Value(configured{}).(Config)
	if !ok { // it was not made by Dial
		return fleet.Errorf(fleet.KindTimeout, "%s: etcd does not answer at %s (is it running, and has it a quorum?): %w",
			what, strings.Join(client.Endpoints(), ", "), err)
	}
	diagnosis := Diagnose(context.WithoutCancel(ctx), config)
	if diagnosis == "" {
		diagnosis = strings.Join(client.Endpoints(), ", ") + ": it says that it is healthy"
	}
	return fleet.Errorf(fleet.KindTimeout, "%s: etcd did not answer in time: %s: %w", what, diagnosis, err)
}
