package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Failed returns the error for what could not be done in etcd. For a request that was not answered
// in time it is KindTimeout and names the endpoints, which the client's own error does not.
func Failed(client *clientv3.Client, what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fleet.Errorf(fleet.KindTimeout, "%s: etcd does not answer at %s (is it running, and has it a quorum?): %w",
			what, strings.Join(client.Endpoints(), ", "), err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
