package etcd_test

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/etcd"
)

// TestNobodyAnswers: whoever reads the error learns where etcd was looked for.
func TestNobodyAnswers(t *testing.T) {
	t.Parallel()
	const nobody = "http://127.0.0.1:1"
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{nobody}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = etcd.Read(ctx, client, etcd.Range{Key: "/x"})
	if fleet.KindOf(err) != fleet.KindTimeout || !strings.Contains(err.Error(), nobody) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}
