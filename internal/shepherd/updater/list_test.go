package updater_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
	"github.com/ironherd/ironherd/internal/provider/static"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/shepherdtest"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// answers is an HTTP server that has a list of hosts, or says that it has none.
type answers struct{ status atomic.Int32 }

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status := int(a.status.Load())
	body := ""
	if status == http.StatusOK {
		body = "- {id: a, address: 192.0.2.1}\n- {id: b, address: 192.0.2.2}\n"
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}, nil
}

// TestAListThatIsNotThereIsNoEmptyOne: when the URL of a list answers 404, no host of it is gone or
// missing, for none of the loops that read it.
func TestAListThatIsNotThereIsNoEmptyOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var server answers
		server.status.Store(http.StatusOK)
		list, err := static.New(static.Config{URL: "https://lists.example/hosts?key=hidden", InFlight: 1}, provider.Options{HTTP: &server})
		check(t, err)
		b := &bench{t: t, db: shepherdtest.OpenDB(t, shepherdtest.OpenEngine(t), bmdb.Options{})}
		check(t, b.db.RegisterProvider(t.Context(), source, list.Kind(), 0))
		provisions, err := provisioner.New(b.db, []provisioner.Source{{Name: source, Provider: list, Config: provisioner.ListConfig()}}, provisioner.Options{})
		check(t, err)
		updates, err := updater.New(b.db, []updater.Source{{Name: source, Provider: list, Config: updater.DefaultConfig()}}, updater.Options{})
		check(t, err)
		pass := func(handler shepherd.Handler) error {
			b.loop, err = shepherd.New(b.db, handler, shepherd.DefaultConfig(), shepherd.Options{})
			check(t, err)
			failed, _ := b.pass().(shepherd.Fail)
			return failed.Err
		}
		look := func(when string) {
			t.Helper()
			view, err := b.db.ViewProvider(t.Context(), source)
			check(t, err)
			if len(view.Machines) != 2 || len(view.Discrepancies) > 0 {
				t.Errorf("%s: machines %+v, discrepancies %+v", when, view.Machines, view.Discrepancies)
			}
			for _, m := range view.Machines {
				record, err := b.db.Machine(t.Context(), m.ID)
				check(t, err)
				if record.Provided == nil || record.Provided.Status != fleet.ProviderStatusActive {
					t.Errorf("%s: %s is %+v", when, m.ProviderID, record.Provided)
				}
			}
		}
		check(t, pass(provisions))
		check(t, pass(updates))
		look("at first")
		for _, status := range []int32{http.StatusNotFound, http.StatusGone} {
			server.status.Store(status)
			for name, handler := range map[string]shepherd.Handler{"provisioner": provisions, "updater": updates} {
				for range 3 {
					const told = "fetch host list https://lists.example/hosts: the answer is 4"
					if err := pass(handler); err == nil || fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), told) {
						t.Errorf("%s, %d: %v (%s)", name, status, err, fleet.KindOf(err))
					}
				}
				look(name)
			}
		}
		server.status.Store(http.StatusOK)
		check(t, pass(updates))
		look("afterwards")
	})
}
