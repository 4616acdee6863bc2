package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Failed says what could not be done in etcd. A request that was not answered in time is
// KindTimeout, and tells where it was asked: the client itself only says that time is up.
func Failed(client *clientv3.Client, what string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fleet.Errorf(fleet.KindTimeout, "%s: etcd does not answer at %s (is it running, and has it a quorum?): %w",
			what, strings.Join(client.Endpoints(), ", "), err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
