package etcd_test

import (
	"context"
	"fmt"
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/etcd"
)

// A decision from a snapshot is written on condition that the snapshot is still the whole truth.
func ExampleRange_Unchanged() {
	ctx, cancel := context.WithCancel(context.Background())
	client, err := etcd.Dial(ctx, etcd.Config{Endpoints: shared.Endpoints()})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	nodes := etcd.Layout{Root: "/example"}.Nodes()
	snapshots, ended := make(chan etcd.Snapshot), make(chan struct{})
	follower := &etcd.Follower{Client: client, Range: nodes, Logger: slog.New(slog.DiscardHandler)}
	go func() {
		defer close(ended)
		_ = follower.Run(ctx, func(s etcd.Snapshot) { snapshots <- s })
	}()
	known := <-snapshots
	fmt.Println(len(known.Entries), "nodes are known")

	register := func(name string, on ...clientv3.Cmp) {
		reply, err := client.Txn(ctx).If(on...).Then(clientv3.OpPut(nodes.Key+name, "{}")).Commit()
		fmt.Println(name, "is written:", err == nil && reply.Succeeded)
	}
	register("control-1", nodes.Unchanged(known.Revision))
	register("control-2", nodes.Unchanged(known.Revision)) // it does not know of control-1
	known = <-snapshots
	fmt.Println(len(known.Entries), "node is known")
	register("control-2", nodes.Unchanged(known.Revision))
	<-snapshots
	cancel()
	<-ended
	// Output:
	// 0 nodes are known
	// control-1 is written: true
	// control-2 is written: false
	// 1 node is known
	// control-2 is written: true
}
