package reconciler

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ironherd/ironherd/reconciler/election"
)

// writes is etcd that counts what is written, and keeps the last value.
type writes struct {
	clientv3.KV
	puts int
	last string
}

type writesTxn struct{ *writes }

func (w *writes) Txn(context.Context) clientv3.Txn   { return writesTxn{w} }
func (x writesTxn) If(...clientv3.Cmp) clientv3.Txn  { return x }
func (x writesTxn) Else(...clientv3.Op) clientv3.Txn { return x }
func (x writesTxn) Commit() (*clientv3.TxnResponse, error) {
	return &clientv3.TxnResponse{Succeeded: true}, nil
}

func (x writesTxn) Then(all ...clientv3.Op) clientv3.Txn {
	for _, op := range all {
		x.last = string(op.ValueBytes())
		if op.IsPut() {
			x.puts++
		}
	}
	return x
}

// TestNoticesInTime: what a leader tells people is written when it changes, at most every
// noticeInterval, and then without another pass.
func TestNoticesInTime(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(*testing.T, *term, string){
		"deletions": func(t *testing.T, leader *term, name string) {
			t.Helper()
			leader.deletionWriter.passEnded(t.Context(), leader, Report{Deleting: []Deletion{{Object: "Thing " + name, Finalizers: []string{"x"}}}})
		},
		"trouble": func(t *testing.T, leader *term, name string) {
			t.Helper()
			leader.troubleWriter.passEnded(t.Context(), leader, Report{}, errors.New("Thing "+name))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				etcd, r := &writes{}, &resources{}
				s := &Service{config: Config{Node: "n1", Layout: ownLayout(), Logger: quiet(t)}, client: &clientv3.Client{KV: etcd}, applier: r.hand("v1.0.0")}
				leader := s.newTerm(&election.Leadership{})
				told := func(when string, puts int, name string) {
					t.Helper()
					if etcd.puts != puts || !strings.Contains(etcd.last, "Thing "+name) {
						t.Errorf("%s: %d writes, want %d of %s: %s", when, etcd.puts, puts, name, etcd.last)
					}
				}
				rest := func(pause time.Duration) {
					t.Helper()
					if err := (&turns{}).await(t.Context(), leader, pause); err != nil {
						t.Error(err)
					}
				}
				end(t, leader, "a")
				told("at first", 1, "a")
				rest(time.Second)
				end(t, leader, "b")
				rest(time.Second)
				end(t, leader, "c")
				rest(2 * time.Second)
				told("too early", 1, "a")
				rest(time.Minute)
				told("while no pass comes", 2, "c")
				end(t, leader, "c")
				told("the same again", 2, "c")
				end(t, leader, "d")
				told("after a while", 3, "d")
				end(t, leader, "e")
				end(t, leader, "d")
				rest(time.Minute)
				told("as it was before", 3, "d")
				end(t, leader, "e")
				end(t, leader, "f")
				if what == "deletions" {
					leader.deletionWriter.passEnded(t.Context(), leader, Report{})
				} else {
					leader.troubleWriter.passEnded(t.Context(), leader, Report{}, nil)
				}
				rest(time.Minute)
				if etcd.puts != 4 || etcd.last != "" {
					t.Errorf("nothing is to be told: %d writes, the last is %q", etcd.puts, etcd.last)
				}
			})
		})
	}
}
