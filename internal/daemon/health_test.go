package daemon_test

import (
	"errors"
	"io"
	"net/http"
	"os/signal"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/token"
)

// TestHealthNoticesThatNothingCanBeWritten: a process whose database can be read, but whose disk
// takes nothing, is neither healthy nor ready; and is again when the disk does.
//
// It is not parallel, because it changes a limit of this process.
func TestHealthNoticesThatNothingCanBeWritten(t *testing.T) {
	c := settings(t)
	c.Roles = []fleet.Role{fleet.RoleOperatorAPI}
	d := open(t, c)
	stop := start(t, d)
	client := overSocket(t, d)
	await(t, client, "http://herd/readyz", http.StatusOK, "")

	signal.Ignore(unix.SIGXFSZ)
	defer signal.Reset(unix.SIGXFSZ)
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := func(limit unix.Rlimit) {
		t.Helper()
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	limit(unix.Rlimit{Cur: 0, Max: before.Max}) // every write to a file fails
	defer limit(before)
	for _, path := range []string{"/healthz", "/readyz"} {
		await(t, client, "http://herd"+path, http.StatusServiceUnavailable, "the database takes no changes")
	}
	// A stranger is told which part is unwell, and not why.
	stranger := overTLS(t, c, "")
	defer stranger.CloseIdleConnections()
	if code, body := get(t, stranger, d.Addresses().OperatorURL+"/healthz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(body, `"database"`) || strings.Contains(body, "error") {
		t.Errorf("/healthz without a token: %d, %s", code, body)
	}
	limit(before)
	for _, path := range []string{"/healthz", "/readyz"} {
		await(t, client, "http://herd"+path, http.StatusOK, "")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestHealthAndMetricsAreAskedWithGet: whoever may ask for them gets nothing else at their paths.
func TestHealthAndMetricsAreAskedWithGet(t *testing.T) {
	t.Parallel()
	c := settings(t)
	c.Roles = []fleet.Role{fleet.RoleOperatorAPI}
	d := open(t, c)
	stop := start(t, d)
	stranger, scraper := overTLS(t, c, ""), overTLS(t, c, create(t, c, token.Metrics))
	defer stranger.CloseIdleConnections()
	defer scraper.CloseIdleConnections()
	for path, asks := range map[string]struct {
		client  *http.Client
		refusal string
	}{
		"/healthz": {stranger, "health is asked for with GET or HEAD\n"},
		"/readyz":  {stranger, "health is asked for with GET or HEAD\n"},
		"/metrics": {scraper, "metrics are asked for with GET or HEAD\n"},
	} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodHead} {
			request, err := http.NewRequestWithContext(t.Context(), method, d.Addresses().OperatorURL+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			response, err := asks.client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			// The words tell it from an answer of the page, which refuses methods, too.
			refused := response.StatusCode == http.StatusMethodNotAllowed && response.Header.Get("Allow") == "GET, HEAD" && string(body) == asks.refusal
			if err := errors.Join(err, response.Body.Close()); err != nil || refused != (method != http.MethodHead) {
				t.Errorf("%s %s: %s, Allow %q, %.300s, %v", method, path, response.Status, response.Header.Get("Allow"), body, err)
			}
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
