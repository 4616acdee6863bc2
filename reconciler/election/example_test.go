package election_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/election"
	"github.com/ironherd/ironherd/reconciler/etcd"
)

// A leader does its work under a context that ends with its leadership, and writes to etcd under
// conditions that hold for nobody else.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := etcd.Dial(ctx, etcd.Config{Endpoints: shared.Endpoints()})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	leadership, err := election.Campaign(ctx, election.Config{
		Client: client, Prefix: "/example/election/", TTL: 10 * time.Second,
		Candidate: election.Candidate{Name: "control-1"}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	fmt.Println("term", leadership.Term)

	bound, done := leadership.Bind(ctx)
	defer done()
	write := func(value string) bool {
		reply, err := client.Txn(ctx).If(leadership.Conditions()...).Then(clientv3.OpPut("/example/status", value)).Commit()
		return err == nil && reply.Succeeded
	}
	fmt.Println("a leader writes:", write("done"))

	if err := leadership.Resign(ctx); err != nil {
		panic(err)
	}
	<-bound.Done()
	fmt.Println(context.Cause(bound))
	fmt.Println("a leader that was writes:", write("working"))
	// Output:
	// term 1
	// a leader writes: true
	// the leadership was given up
	// a leader that was writes: false
}
