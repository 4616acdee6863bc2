package etcdtest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the tests of a package with a cluster of one member that they share, and returns the
// exit code. They fail when they leave anything running that is not to be ignored.
func Main(ctx context.Context, m *testing.M, shared **Cluster, ignore ...goleak.Option) (code int) {
	code = run(ctx, m, shared)
	if err := left(ignore...); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// left returns an error that names what runs still. What follows the files of a certificate for a
// Kubernetes client ends no sooner than the garbage collector finds that nobody has the client.
func left(ignore ...goleak.Option) (err error) {
	for range 3 {
		runtime.GC()
		if err = goleak.Find(ignore...); err == nil {
			return nil
		}
	}
	return err
}

func run(ctx context.Context, m *testing.M, shared **Cluster) (code int) {
	dir, err := os.MkdirTemp("", "etcd")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		*shared, err = Start(ctx, dir, 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer (*shared).Close()
	return m.Run()
}

// MembersLeave is what members that talked to each other leave running for a while.
func MembersLeave() (all []goleak.Option) {
	for _, name := range []string{
		"net/http.(*persistConn).readLoop", "net/http.(*persistConn).writeLoop", "net/http.(*connReader).backgroundRead", "net/http.(*conn).serve",
	} {
		all = append(all, goleak.IgnoreAnyFunction(name))
	}
	return all
}
