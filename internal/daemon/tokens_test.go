package daemon_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
	"github.com/ironherd/ironherd/api/fleet/v1/fleetv1connect"
	"github.com/ironherd/ironherd/internal/daemon"
	"github.com/ironherd/ironherd/internal/token"
)

// madeLongAgo has the tokens of a file made for more than a month.
func madeLongAgo(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	created := regexp.MustCompile(`created: .*`).ReplaceAllString(string(text), "created: "+time.Now().AddDate(0, 0, -40).UTC().Format(time.RFC3339))
	if err := os.WriteFile(path, []byte(created), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestStartsWhenTheLastTokenHasExpired: a start after the end of the last token has to do with the
// fleet, not with callers. It says that nobody can call, and lets in whoever gets a token.
func TestStartsWhenTheLastTokenHasExpired(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		listen string
		life   time.Duration // of the token that is there; 0: none
		warned int
	}{
		"no token":                  {"0.0.0.0:0", 0, 1},
		"an expired one":            {"0.0.0.0:0", time.Nanosecond, 1},
		"one that counts":           {"0.0.0.0:0", time.Hour, 0},
		"no token, for this host":   {"127.0.0.1:0", 0, 0},
		"no token, only the socket": {"", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := settings(t)
			c.OperatorAPI.Listen = test.listen
			if test.life > 0 {
				if _, _, err := token.Create(c.OperatorAPI.TokensFile, "old", token.Viewer, test.life); err != nil {
					t.Fatal(err)
				}
				madeLongAgo(t, c.OperatorAPI.TokensFile)
			}
			var log bytes.Buffer
			d, err := daemon.Open(t.Context(), c, daemon.Options{Version: "v1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			told := log.String() // nothing runs yet
			t.Cleanup(func() {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			})
			const sentence = "no token counts: nobody can call from other hosts until one is made with `ironherd token create NAME --role ROLE`; the Unix socket works"
			if n := strings.Count(told, sentence); n != test.warned {
				t.Errorf("warned %d times, want %d: %s", n, test.warned, told)
			}
			if test.warned == 0 {
				return
			}
			stop := start(t, d)
			at, err := url.Parse(d.Addresses().OperatorURL)
			if err != nil {
				t.Fatal(err)
			}
			api := "https://127.0.0.1:" + at.Port()
			stranger := overTLS(t, c, "")
			socket := overSocket(t, d)
			await(t, socket, "http://herd/readyz", http.StatusOK, "")
			if code, _ := get(t, stranger, api+"/metrics"); code != http.StatusUnauthorized {
				t.Errorf("a stranger gets %d", code)
			}
			concern := func(when string, wants, runsOut, missing bool) {
				t.Helper()
				summary, err := fleetv1connect.NewFleetServiceClient(socket, "http://herd").GetSummary(t.Context(), &fleetv1.GetSummaryRequest{})
				told := slices.ContainsFunc(summary.GetConcerns(), func(c *fleetv1.Concern) bool { return c.GetKind() == "token" })
				if err != nil || told != wants {
					t.Errorf("%s: %v, %v", when, summary.GetConcerns(), err)
				}
				is := map[bool]int{true: 1}
				for _, gauge := range []string{
					fmt.Sprintf("\nironherd_tokens_expire_soon{role=\"viewer\"} %d\n", is[runsOut]), fmt.Sprintf("\nironherd_tokens_missing %d\n", is[missing]),
				} {
					if code, text := get(t, socket, "http://herd/metrics"); code != http.StatusOK || !strings.Contains(text, gauge) {
						t.Errorf("%s: %d, no line %q", when, code, gauge)
					}
				}
			}
			concern("no token counts", true, test.life > 0, true)
			if code, _ := get(t, overTLS(t, c, create(t, c, token.Metrics)), api+"/metrics"); code != http.StatusOK {
				t.Errorf("whoever got a token gets %d", code)
			}
			concern("one counts", test.life > 0, test.life > 0, false)
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStartsWithDamagedTokens: what only callers over TCP need keeps nobody from the fleet, and
// lets nobody in.
func TestStartsWithDamagedTokens(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", "127.0.0.1:0"} {
		t.Run(listen, func(t *testing.T) {
			t.Parallel()
			startsWithDamagedTokens(t, listen)
		})
	}
}

func startsWithDamagedTokens(t *testing.T, listen string) {
	t.Helper()
	c := settings(t)
	c.OperatorAPI.Listen = listen
	restart(t, c)
	ada := create(t, c, token.Admin)
	whole, err := os.ReadFile(c.OperatorAPI.TokensFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.OperatorAPI.TokensFile, whole[:len(whole)-10], 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	d, err := daemon.Open(t.Context(), c, daemon.Options{Version: "v1", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	told := log.String() // nothing runs yet
	if !strings.Contains(told, "none counts until they can") || strings.Contains(told, "no token counts") {
		t.Errorf("logged: %s", told)
	}
	stop := start(t, d)
	at, err := url.Parse(d.Addresses().OperatorURL)
	if err != nil {
		t.Fatal(err)
	}
	api, socket := "https://127.0.0.1:"+at.Port(), overSocket(t, d)
	holder := overTLS(t, c, ada)
	await(t, socket, "http://herd/readyz", http.StatusOK, "")
	if code, _ := get(t, holder, api+"/metrics"); code == http.StatusOK {
		t.Error("a token of a damaged file counts")
	}
	summary, err := fleetv1connect.NewFleetServiceClient(socket, "http://herd").GetSummary(t.Context(), &fleetv1.GetSummaryRequest{})
	if err != nil || !slices.ContainsFunc(summary.GetConcerns(), func(c *fleetv1.Concern) bool {
		return c.GetKind() == "token" && strings.Contains(c.GetText(), "must have the SHA-256")
	}) {
		t.Errorf("concerns: %v, %v", summary.GetConcerns(), err)
	}
	if code, text := get(t, socket, "http://herd/metrics"); code != http.StatusOK || !strings.Contains(text, "\nironherd_tokens_missing 1\n") {
		t.Errorf("the metrics (%d) do not tell it", code)
	}
	if err := os.WriteFile(c.OperatorAPI.TokensFile, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, holder, api+"/metrics"); code != http.StatusOK {
		t.Errorf("with the file whole again, its token gets %d", code)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
