// Command embed keeps one ConfigMap in a Kubernetes cluster, through upgrades of its nodes: it is
// what a program looks like that embeds Ironherd's reconciler for resources of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ironherd/ironherd/reconciler"
	"github.com/ironherd/ironherd/reconciler/engine"
	"github.com/ironherd/ironherd/reconciler/etcd"
	"github.com/ironherd/ironherd/reconciler/release"
)

func main() {
	endpoint := flag.String("etcd", "http://127.0.0.1:2379", "client URL of etcd")
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig of this node's API server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *endpoint, *kubeconfig)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoint, kubeconfig string) error {
	client, err := etcd.Dial(ctx, etcd.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	defer client.Close()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	own, err := engine.New(config, engine.Options{Objects: []*unstructured.Unstructured{{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "embedded", "namespace": "default"},
		"data": map[string]any{"kept": "by another program"},
	}}}})
	if err != nil {
		return err
	}
	defer own.Close()
	first, err := release.Parse("v1.0.0")
	if err != nil {
		return err
	}
	return reconciler.Run(ctx, reconciler.Config{
		Node: "control-1", Build: release.Build{Release: first, MinReconciler: first, MinAPIServer: first},
		Layout: etcd.Layout{Root: "/embed"}, Logger: slog.Default(),
	}, client, own)
}
