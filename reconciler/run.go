package reconciler

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/service"
)

// drain is how long all components together may take to stop. The leadership ends at once in any
// case.
const drain = 10 * time.Second

// Run makes a service, as NewService does, and runs it in a supervision tree of its own. It returns
// nil when ctx has ended and everything has stopped in order, and an error at once if the
// configuration is wrong.
func Run(ctx context.Context, config Config, client *clientv3.Client, applier Applier) error {
	s, err := NewService(config, client, applier)
	if err != nil {
		return err
	}
	tree, err := service.New(service.Options{Logger: config.Logger, Drain: drain}, supervised(s.Components())...)
	if err != nil {
		return err
	}
	return tree.Run(ctx)
}

// supervised returns components as a supervision tree takes them.
func supervised(of []Component) (all []service.Component) {
	for _, c := range of {
		stage := service.Loops
		if c.Base {
			stage = service.State
		}
		all = append(all, service.Component{Name: c.Name, Stage: stage, Serve: c.Serve, Check: c.Check})
	}
	return all
}
