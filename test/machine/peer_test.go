package machine

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/remote"
	"github.com/ironherd/ironherd/internal/vm"
)

// peer is a machine between the host and other machines: they have cables to it alone. It is their
// switch, and carries connections between them and the host by its SSH server.
type peer struct {
	machine *vm.Machine
	host    *remote.Host
	dir     string
}

// bootPeer starts a peer with that many cables. Its interface wan0 leads to the host, wan1 is the
// end of the first cable, and so on.
func bootPeer(t *testing.T, ctx context.Context, cables int) *peer {
	t.Helper()
	c := quick(t, vm.BIOS, fmt.Sprintf("test.cards=%d", cables+1))
	c.Name, c.Networks[0].MAC = "peer", "52:54:00:00:01:00"
	p := &peer{dir: c.Dir}
	for n := range cables {
		c.Networks = append(c.Networks, vm.Network{MAC: fmt.Sprintf("52:54:00:00:01:%02x", n+1), Switch: p.cable(n), SwitchListen: true, Speed: 1000})
	}
	p.machine = boot(t, c)
	p.host = login(t, ctx, p.machine)
	return p
}

// cable is the socket that the nth cable is.
func (p *peer) cable(n int) string { return filepath.Join(p.dir, fmt.Sprint("cable", n)) }

// connect carries connections to guest, port 22, from a port of the host, which it returns; and
// those to port of the peer's own address to that port of the host.
func (p *peer) connect(t *testing.T, ctx context.Context, own, guest string, port int) int {
	t.Helper()
	forward := freePort(t)
	carry := exec.CommandContext(ctx, "ssh", "-v", "-N", "-i", built.base.key, "-p", fmt.Sprint(p.machine.Port(22)),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes",
		"-L", fmt.Sprintf("127.0.0.1:%d:[%s]:22", forward, guest), "-R", fmt.Sprintf("[%s]:%d:127.0.0.1:%d", own, port, port), "root@127.0.0.1")
	var said strings.Builder
	carry.Stderr = &said
	check(t, carry.Start()) // it ends with the peer, if not before
	ended := make(chan error, 1)
	go func() { ended <- carry.Wait() }()
	t.Cleanup(func() {
		_ = carry.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("ssh to the peer said:\n%s", said.String())
		}
	})
	await(t, ctx, "a way through the peer", func() error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", forward))
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	return forward
}
