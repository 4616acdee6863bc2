package server_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironherd/ironherd/internal/server"
	"github.com/ironherd/ironherd/internal/token"
)

// door is a limited listener in memory, and what it has refused.
type door struct {
	t        *testing.T
	incoming chan net.Conn
	limited  net.Listener
	all      *server.Refusals
	log      bytes.Buffer

	mu      sync.Mutex
	refused []string
}

func newDoor(t *testing.T, limit server.Limit) *door {
	t.Helper()
	d := &door{t: t, incoming: make(chan net.Conn)}
	d.all = server.NewRefusals(slog.New(slog.NewTextHandler(&d.log, nil)), func(why string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.refused = append(d.refused, why)
	})
	d.limited = server.LimitConnections(d, limit, d.all)
	return d
}

func (d *door) Accept() (net.Conn, error) {
	c, ok := <-d.incoming
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (d *door) Close() error   { close(d.incoming); return nil }
func (d *door) Addr() net.Addr { return &net.TCPAddr{} }

// remote is a connection in memory with an address.
type remote struct {
	net.Conn
	address net.Addr
}

func (r remote) RemoteAddr() net.Addr { return r.address }

// visitor is one connection from both sides. Its server reads until the connection ends.
type visitor struct {
	client net.Conn
	server *server.LimitedConn // nil: refused
}

// visit connects from an address.
func (d *door) visit(from string) *visitor {
	d.t.Helper()
	here, there := net.Pipe()
	d.t.Cleanup(func() { here.Close(); there.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := d.limited.Accept(); err == nil {
			accepted <- c
		}
	}()
	d.incoming <- remote{there, &net.TCPAddr{IP: net.ParseIP(from)}}
	synctest.Wait()
	v := &visitor{client: here}
	select {
	case c := <-accepted:
		v.server = server.LimitedConnOf(c)
		go func() {
			buffer := make([]byte, 1024)
			for {
				if _, err := c.Read(buffer); err != nil {
					_ = c.Close()
					return
				}
			}
		}()
	default:
		close(d.incoming) // ends the Accept that is under way
		synctest.Wait()
		d.incoming = make(chan net.Conn)
	}
	return v
}

// open says whether the server still has the connection.
func (v *visitor) open() bool {
	if v.server == nil {
		return false
	}
	_ = v.client.SetReadDeadline(time.Now().Add(time.Nanosecond))
	_, err := v.client.Read(make([]byte, 1))
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// refusals returns what was refused until now.
func (d *door) refusals() []string {
	synctest.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.refused
}

func (d *door) want(what string, all map[string]bool, of map[string]*visitor) {
	d.t.Helper()
	synctest.Wait()
	got := map[string]bool{}
	for name, v := range of {
		got[name] = v.open()
	}
	if !reflect.DeepEqual(got, all) {
		d.t.Errorf("%s: open are %v, want %v", what, got, all)
	}
}

func TestConnectionsFitTheLimitOfOpenFiles(t *testing.T) {
	t.Parallel()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	if got := server.FitOpenFiles(10); got != 10 {
		t.Errorf("ten connections are %d", got)
	}
	if files.Cur > math.MaxInt32 {
		if got := server.FitOpenFiles(0); got != 0 {
			t.Errorf("this process may open any number of files, and %d connections", got)
		}
		return
	}
	all := int(files.Cur)
	for _, connections := range []int{0, all} {
		if got := server.FitOpenFiles(connections); got >= all || got < all/2 || got < all-1000 {
			t.Errorf("%d connections are %d, with %d files", connections, got, all)
		}
	}
}

func TestUnadmittedConnectionsAreShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{AdmitWithin: 10 * time.Second})
		stranger, agent, dismissed := d.visit("192.0.2.1"), d.visit("192.0.2.2"), d.visit("192.0.2.3")
		all := map[string]*visitor{"stranger": stranger, "agent": agent, "dismissed": dismissed}
		time.Sleep(9 * time.Second)
		agent.server.Admit()
		dismissed.server.Admit()
		carrying := d.visit("192.0.2.4")
		done := carrying.server.Carrying("")
		carrying.server.Dismiss()
		d.want("before the deadline", map[string]bool{"stranger": true, "agent": true, "dismissed": true}, all)
		time.Sleep(2 * time.Second)
		d.want("after it", map[string]bool{"stranger": false, "agent": true, "dismissed": true}, all)
		dismissed.server.Dismiss()
		time.Sleep(9 * time.Second)
		d.want("dismissed", map[string]bool{"stranger": false, "agent": true, "dismissed": true}, all)
		time.Sleep(2 * time.Second)
		d.want("dismissed for long", map[string]bool{"stranger": false, "agent": true, "dismissed": false}, all)
		if !carrying.open() {
			t.Error("a connection that carries a call is closed")
		}
		done()
		carrying.server.Dismiss()
		time.Sleep(11 * time.Second)
		if carrying.open() {
			t.Error("a connection that carried a call, and was dismissed, is open")
		}
		if got, want := d.refusals(), []string{"too_late", "too_late", "too_late"}; !reflect.DeepEqual(got, want) {
			t.Errorf("refused: %v, want %v", got, want)
		}
	})
}

func TestUnadmittedConnectionsSendLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{UnadmittedBytes: 1000})
		stranger, agent := d.visit("192.0.2.1"), d.visit("192.0.2.1")
		agent.server.Admit()
		all := map[string]*visitor{"stranger": stranger, "agent": agent}
		for _, v := range all {
			_, _ = v.client.Write(make([]byte, 1000))
		}
		synctest.Wait()
		d.want("within the limit", map[string]bool{"stranger": true, "agent": true}, all)
		for _, v := range all {
			_, _ = v.client.Write(make([]byte, 1))
		}
		synctest.Wait()
		d.want("above it", map[string]bool{"stranger": false, "agent": true}, all)
		agent.server.Dismiss()
		_, _ = agent.client.Write(make([]byte, 1001))
		synctest.Wait()
		d.want("no longer admitted", map[string]bool{"stranger": false, "agent": false}, all)
	})
}

// TestTheIdleMakeRoom: of one source, who keeps the server waiting for the longest is closed for
// somebody new, but nobody who has just come, who is being served, or who is admitted.
func TestTheIdleMakeRoom(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]server.Limit{
		"of all": {Total: 4}, "of a source": {PerSource: 4}, "unadmitted": {Unadmitted: 3}, "unadmitted of a source": {UnadmittedPerSource: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDoor(t, limit)
				admitted, served, idle := d.visit("192.0.2.1"), d.visit("192.0.2.1"), d.visit("192.0.2.1")
				admitted.server.Admit()
				done := served.server.Serving()
				time.Sleep(900 * time.Millisecond)
				young := d.visit("192.0.2.1")
				all := map[string]*visitor{"admitted": admitted, "served": served, "idle": idle, "young": young}
				first := d.visit("192.0.2.1")
				d.want("nobody was idle for long", map[string]bool{"admitted": true, "served": true, "idle": true, "young": true}, all)
				if first.open() {
					t.Error("a connection above the limit is open")
				}
				time.Sleep(200 * time.Millisecond)
				second := d.visit("192.0.2.1")
				d.want("one was", map[string]bool{"admitted": true, "served": true, "idle": false, "young": true}, all)
				if !second.open() {
					t.Error("no room was made")
				}
				done()
				d.visit("192.0.2.1")
				d.want("another one was", map[string]bool{"admitted": true, "served": false, "idle": false, "young": true}, all)
				if got, want := d.refusals(), []string{"no_room", "made_room", "made_room"}; !reflect.DeepEqual(got, want) {
					t.Errorf("refused: %v, want %v", got, want)
				}
			})
		})
	}
}

// TestTheOldestOfAnOwnerMakesRoom: of the connections that are admitted for one owner only the
// newest stay. Who was dismissed still counts, and who has closed it does not.
func TestTheOldestOfAnOwnerMakesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{PerOwner: 2})
		all := map[string]*visitor{}
		admit := func(name, owner string) *visitor {
			all[name] = d.visit("192.0.2.1")
			all[name].server.AdmitFor(owner)
			return all[name]
		}
		admit("nobody's", "")
		admit("another's", "b")
		first, second := admit("first", "a"), admit("second", "a")
		first.server.AdmitFor("a")
		d.want("as many as may be", map[string]bool{"nobody's": true, "another's": true, "first": true, "second": true}, all)
		first.server.Dismiss()
		third := admit("third", "a")
		d.want("one more", map[string]bool{"nobody's": true, "another's": true, "first": false, "second": true, "third": true}, all)
		_ = third.client.Close()
		synctest.Wait()
		second.server.Dismiss()
		second.server.AdmitFor("a")
		admit("fourth", "a")
		d.want("in its place", map[string]bool{
			"nobody's": true, "another's": true, "first": false, "second": true, "third": false, "fourth": true,
		}, all)
		if got, want := d.refusals(), []string{"too_many"}; !reflect.DeepEqual(got, want) {
			t.Errorf("refused: %v, want %v", got, want)
		}
	})
}

// TestTheManyMakeRoomForTheFew: a source that has many connections makes room at once for one that
// has few; addresses of one IPv6 network are one source.
func TestTheManyMakeRoomForTheFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{Unadmitted: 4})
		all := map[string]*visitor{"other": d.visit("2001:db8:0:2::1")}
		for _, host := range []string{"1", "2", "3"} {
			all[host] = d.visit("2001:db8:0:1::" + host)
			time.Sleep(time.Millisecond)
		}
		if v := d.visit("2001:db8:0:1::4"); v.open() {
			t.Error("it takes room from others")
		}
		all["few"] = d.visit("2001:db8:0:3::1")
		d.want("the oldest of many", map[string]bool{"other": true, "1": false, "2": true, "3": true, "few": true}, all)
		if v := d.visit("2001:db8:0:4::1"); !v.open() {
			t.Error("no room was made for one more")
		}
		if v := d.visit("2001:db8:0:5::1"); v.open() {
			t.Error("one of each, and yet one more is let in")
		}
	})
}

// TestNoRoomForThoseItIsFor: it is told apart from strangers who crowd out only each other.
func TestNoRoomForThoseItIsFor(t *testing.T) {
	t.Parallel()
	limit := server.Limit{Total: 8, Unadmitted: 4, UnadmittedPerSource: 2, PerOwner: 1}
	for name, c := range map[string]struct {
		admitted, waiting []string // where the connections are from, each of an owner of its own
		next              string
		want              bool
	}{
		"a stranger fills its share":              {nil, []string{"192.0.2.1", "192.0.2.1"}, "192.0.2.1", false},
		"beside one agent":                        {[]string{"192.0.2.1"}, []string{"192.0.2.1", "192.0.2.1"}, "192.0.2.1", false},
		"where several agents come from":          {[]string{"192.0.2.1", "192.0.2.1"}, []string{"192.0.2.1", "192.0.2.1"}, "192.0.2.1", true},
		"strangers fill all, and would make room": {nil, []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"}, "192.0.2.2", false},
		"strangers from everywhere fill all":      {nil, []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, "192.0.2.5", true},
		"agents fill all": {
			[]string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5", "192.0.2.6", "192.0.2.7", "192.0.2.8"}, nil, "192.0.2.9", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDoor(t, limit)
				for i, from := range c.admitted {
					d.visit(from).server.AdmitFor(strconv.Itoa(i))
				}
				for _, from := range c.waiting {
					d.visit(from)
				}
				if d.all.Full() {
					t.Error("there is no room, and nobody was refused")
				}
				if v := d.visit(c.next); v.server != nil {
					t.Error("there is room")
				}
				if got := d.all.Full(); got != c.want {
					t.Errorf("there is no room for whom it is for: %v", got)
				}
				if d.all.Full() {
					t.Error("it is told again")
				}
			})
		})
	}
}

// TestStrangersConnectionsEnd: over HTTP, a connection stays only if its caller may read.
func TestStrangersConnectionsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{})
		options := server.HTTPOptions{
			Logger: discard, Limit: server.Limit{AdmitWithin: 5 * time.Second}, Refusals: server.NewRefusals(discard, func(why string) {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.refused = append(d.refused, why)
			}),
		}
		handler := server.NewAccess(known(), slog.New(slog.DiscardHandler)).Identify(server.Guard(map[string]token.Role{"/": token.Viewer}, rights))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.NewHTTP(handler, options).Serve(ctx, d) }()
		connect := func() net.Conn {
			here, there := net.Pipe()
			d.incoming <- remote{there, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1}}
			t.Cleanup(func() { here.Close(); there.Close() })
			return here
		}
		ask := func(conn net.Conn, header string) (status int, last bool) {
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+header+"\r\n"); err != nil {
				return 0, true
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return 0, true
			}
			defer answer.Body.Close()
			_, _ = io.Copy(io.Discard, answer.Body)
			return answer.StatusCode, answer.Close
		}
		idle, stranger, operator := connect(), connect(), connect()
		if status, last := ask(stranger, ""); status != http.StatusUnauthorized || !last {
			t.Errorf("a stranger: %d, last %v", status, last)
		}
		const bearer = "Authorization: Bearer viewer\r\n"
		if status, last := ask(operator, bearer); status != http.StatusOK || last {
			t.Errorf("the operator: %d, last %v", status, last)
		}
		time.Sleep(11 * time.Second)
		if status, _ := ask(idle, bearer); status != 0 {
			t.Errorf("a connection that was idle answers %d", status)
		}
		if status, last := ask(operator, bearer); status != http.StatusOK || last {
			t.Errorf("the operator again: %d, last %v", status, last)
		}
		synctest.Wait()
		if got, want := d.refusals(), []string{"not_admitted", "too_late"}; !reflect.DeepEqual(got, want) {
			t.Errorf("refused: %v, want %v", got, want)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestRefusalsAreLoggedSparsely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDoor(t, server.Limit{PerSource: 1})
		agent := d.visit("192.0.2.1")
		agent.server.Admit()
		for range 100 {
			d.visit("192.0.2.1")
			time.Sleep(time.Second)
		}
		time.Sleep(time.Hour)
		if n := len(d.refusals()); n != 100 {
			t.Errorf("%d are counted", n)
		}
		lines := strings.Split(strings.TrimSpace(d.log.String()), "\n")
		if len(lines) != 3 || !strings.HasSuffix(lines[0], "remote=192.0.2.1 no_room=1") || !strings.HasSuffix(lines[1], "no_room=59") && !strings.HasSuffix(lines[1], "no_room=60") {
			t.Errorf("logged %q", lines)
		}
	})
}
