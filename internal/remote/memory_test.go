package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"
)

// serveInMemory returns how to connect to an SSH server in memory, which a bubble of fake time can
// hold. It admits everybody, and has offered do with each channel that is asked for.
func serveInMemory(t *testing.T, hostKey *Key, offered func(ssh.NewChannel)) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	return func(context.Context, string, string) (net.Conn, error) {
		here, back := newStream(), newStream()
		serving.Go(func() {
			config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return new(ssh.Permissions), nil }}
			config.AddHostKey(hostKey.signer)
			end := &wire{in: here, out: back}
			defer end.Close()
			_, channels, requests, err := ssh.NewServerConn(end, config)
			if err != nil {
				return
			}
			serving.Go(func() { ssh.DiscardRequests(requests) })
			for channel := range channels {
				offered(channel)
			}
		})
		return &wire{in: back, out: here}, nil
	}
}

// startAnswering connects to a host in memory that has no SFTP and answers each command line with a
// text. A line that it has no answer to hangs.
func startAnswering(t *testing.T, answer func(line string) (text string, answers bool)) *Host {
	t.Helper()
	hostKey := newTestKey(t)
	dial := serveInMemory(t, hostKey, func(offered ssh.NewChannel) {
		channel, requests, err := offered.Accept()
		if err != nil {
			return
		}
		go func() {
			for request := range requests {
				if request.Type != "exec" {
					_ = request.Reply(false, nil)
					continue
				}
				line := string(request.Payload[4:])
				text, answers := answer(line)
				if !answers {
					continue
				}
				_ = request.Reply(true, nil)
				_, _ = io.WriteString(channel, markOf(line)+"\n"+text)
				_, _ = channel.SendRequest("exit-status", false, make([]byte, 4))
				_ = channel.Close()
			}
		}()
	})
	host, err := NewDialer(newTestKey(t), Options{Dial: dial}).Dial(t.Context(), Target{
		Address: netip.MustParseAddrPort("192.0.2.1:22"), User: "admin", Trust: Trust{Pinned: []string{hostKey.Public()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Close() })
	return host
}

// TestAnUploadDoesNotFailByWhatIsLeft: a host that does not finish removing what earlier uploads
// have left has the agent all the same, and goes on being used.
func TestAnUploadDoesNotFailByWhatIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		content := newContent([]byte("agent"))
		host := startAnswering(t, func(line string) (string, bool) {
			switch {
			case strings.Contains(line, "uname -m"):
				return "x86_64\n0\n", true
			case strings.Contains(line, "mkdir -p"):
				return "/a\ndrwxr-xr-x 2 0 0 60 Jan 1 00:00 /a\ndrwxr-xr-x 2 0 0 60 Jan 1 00:00 /\n", true
			case strings.Contains(line, "ls -ldn"):
				return fmt.Sprintf("-rwx------ 1 0 0 %d Jan 1 00:00 %s\n", content.Size(), path.Base(content.Path("/a/agent"))), true
			case strings.Contains(line, "sha256sum"):
				return content.Digest() + "  it\n", true
			}
			return "", strings.HasSuffix(line, "exec true")
		})
		start := time.Now()
		uploaded, err := host.Upload(t.Context(), content, "/a/agent", 0o700)
		if took := time.Since(start); err != nil || uploaded != (Uploaded{Path: content.Path("/a/agent")}) || took != 15*time.Second {
			t.Errorf("%+v, %v after %s", uploaded, err, took)
		}
		if _, err := host.Run(t.Context(), Command{Args: []string{"true"}}); err != nil {
			t.Errorf("the connection is of no use after that: %v", err)
		}
	})
}

// TestWhoHasNotRootsRightsIsNamed where a directory cannot be used.
func TestWhoHasNotRootsRightsIsNamed(t *testing.T) {
	t.Parallel()
	for uid, want := range map[string]string{"0": "", "1000": "user admin (uid 1000)"} {
		t.Run(uid, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				host := startAnswering(t, func(line string) (string, bool) {
					if strings.Contains(line, "uname -m") {
						return "x86_64\n" + uid + "\n", true
					}
					return "/a\ndrwxrwxrwx 2 0 0 60 Jan 1 00:00 /a\ndrwxr-xr-x 2 0 0 60 Jan 1 00:00 /\n", true
				})
				_, err := host.Upload(t.Context(), newContent([]byte("agent")), "/a/agent", 0o700)
				if wrong, ok := errors.AsType[*DirectoryError](err); !ok || wrong.NotRoot != want {
					t.Errorf("%v: %+v", err, wrong)
				}
			})
		})
	}
}
