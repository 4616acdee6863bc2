package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/ironherd/ironherd/internal/fleet"
)

// startServer starts an SSH server that admits everybody, and gives each connection that is
// authenticated to serve. It ends what is left of them when the test ends.
func startServer(t *testing.T, serve func(*ssh.ServerConn, <-chan ssh.NewChannel)) (Target, *Key) {
	t.Helper()
	hostKey, key := newTestKey(t), newTestKey(t)
	config := &ssh.ServerConfig{NoClientAuth: true}
	config.AddHostKey(hostKey.signer)
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	address := listen(t, func(connection net.Conn) {
		serving.Go(func() {
			server, channels, requests, err := ssh.NewServerConn(connection, config)
			if err != nil {
				t.Error(err)
				return
			}
			go ssh.DiscardRequests(requests)
			serve(server, channels)
			_ = server.Close()
			for range channels { //nolint:revive // what is left of a connection that has ended
			}
		})
	})
	return Target{Address: address, User: "root", Trust: Trust{Pinned: []string{hostKey.Public()}}}, key
}

// tap is a connection that tells of the first error of a read, and keeps it from the reader until
// told to go on.
type tap struct {
	*link
	failed, goOn chan struct{}
}

func (c *tap) Read(p []byte) (int, error) {
	n, err := c.link.Read(p)
	if err != nil {
		close(c.failed)
		<-c.goOn
	}
	return n, err
}

// The library must not learn that a connection has ended while it still opens channels: it would
// wait for their answers for ever.
func TestAnEndedConnectionRefusesWritesBeforeTheLibraryLearnsOfIt(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(client net.Conn, hangUp chan struct{}){
		"the host hangs up": func(_ net.Conn, hangUp chan struct{}) { close(hangUp) },
		"we close": func(client net.Conn, hangUp chan struct{}) {
			client.Close()
			close(hangUp)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hangUp := make(chan struct{})
			target, key := startServer(t, func(*ssh.ServerConn, <-chan ssh.NewChannel) { <-hangUp })
			connection, err := net.Dial("tcp", target.Address.String())
			if err != nil {
				t.Fatal(err)
			}
			tapped := &tap{link: &link{Conn: connection}, failed: make(chan struct{}), goOn: make(chan struct{})}
			sshConnection, channels, requests, err := ssh.NewClientConn(tapped, target.Address.String(), &ssh.ClientConfig{
				User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key.signer)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
			})
			if err != nil {
				t.Fatal(err)
			}
			tapped.attach(sshConnection)
			client := ssh.NewClient(sshConnection, channels, requests)
			end(tapped.link, hangUp)
			<-tapped.failed
			opened := make(chan error, 1)
			go func() {
				_, err := client.NewSession()
				opened <- err
			}()
			select {
			case err := <-opened:
				if err == nil {
					t.Error("a session was opened on a connection that has ended")
				}
			case <-time.After(time.Minute):
				t.Error("a session is being opened on a connection that has ended")
			}
			close(tapped.goOn)
			if err := client.Wait(); err == nil {
				t.Error("the connection ended without an error")
			}
		})
	}
}

// A connection may end after the handshake and before it is attached.
func TestALinkThatEndedBeforeItIsAttachedRefusesWrites(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	far.Close()
	l := &link{Conn: near}
	if _, err := l.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	l.attach(writerConn{link: l, written: written})
	select {
	case err := <-written:
		if !errors.Is(err, io.EOF) {
			t.Errorf("a write after the end gives %v", err)
		}
	default:
		t.Error("the library was made to write nothing")
	}
}

// writerConn is a library that writes a byte for each request, and tells how that went.
type writerConn struct {
	ssh.Conn
	link    *link
	written chan<- error
}

func (c writerConn) SendRequest(string, bool, []byte) (bool, []byte, error) {
	_, err := c.link.Write([]byte{0})
	c.written <- err
	return false, nil, nil
}

// A command that ends without an exit status is the first sign that a connection ends. The next
// operation must not be begun in the gap between that sign and the end.
func TestACommandWithoutAnExitStatusEndsTheConnection(t *testing.T) {
	t.Parallel()
	target, key := startServer(t, func(_ *ssh.ServerConn, channels <-chan ssh.NewChannel) {
		for offered := range channels {
			channel, requests, err := offered.Accept()
			if err != nil {
				return
			}
			for request := range requests {
				_ = request.Reply(true, nil)
				_ = channel.Close()
			}
		}
	})
	host, err := NewDialer(key, Options{}).Dial(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if _, err := host.Run(t.Context(), Command{Args: []string{"true"}}); fleet.KindOf(err) != fleet.KindTemporary {
		t.Errorf("%v (%s)", err, fleet.KindOf(err))
	}
	select {
	case <-host.over:
	default:
		t.Error("the connection has not ended")
	}
}

// The library stops to take a channel's requests at one that is malformed, and then its one reader
// hangs on the requests that follow.
func TestAHostThatSendsMalformedRequestsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	for _, malformed := range []string{"exit-status", "exit-signal"} {
		t.Run(malformed, func(t *testing.T) {
			t.Parallel()
			target, key := startServer(t, func(_ *ssh.ServerConn, channels <-chan ssh.NewChannel) {
				for offered := range channels {
					channel, requests, err := offered.Accept()
					if err != nil {
						return
					}
					for request := range requests {
						_ = request.Reply(true, nil)
						_, _ = channel.SendRequest(malformed, false, []byte{1})
						for range 100 {
							_, _ = channel.SendRequest("anything", false, nil)
						}
						_ = channel.Close()
					}
				}
			})
			host, err := NewDialer(key, Options{}).Dial(t.Context(), target)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := host.Run(ctx, Command{Args: []string{"true"}}); fleet.KindOf(err) != fleet.KindTemporary {
				t.Errorf("%v (%s)", err, fleet.KindOf(err))
			}
			_ = host.Close()
			select {
			case <-host.over:
			default:
				t.Error("the connection has not ended")
			}
		})
	}
}
