package webui

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
)

// TestAFormerMachineIsNamed: the control plane knows which machine it was, and what tells more. So
// does whoever looks for it, and whoever has its page open.
func TestAFormerMachineIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stub := smallFleet()
		site := New(inBubble(stub), Options{})
		v := watch(t, site, "/live/machines/herd-0001")
		defer v.leave()
		v.events(t)
		const told = "o machine is known as herd-0001 any more: `ironherd machine history " + first + "` tells what became of it."
		stub.change(func() {
			stub.fail = func(string) error {
				return connect.NewError(connect.CodeNotFound, errors.New("n"+strings.TrimSuffix(told, ".")))
			}
		})
		pass(2 * time.Second)
		swaps := lastSwaps(t, v)
		if html := swaps["notice"]; len(swaps) != 1 || !strings.Contains(html, told) || strings.Contains(html, "refuses") {
			t.Errorf("the page that is open shows: %v", swaps)
		}
		if w := get(t, site, "/machines/herd-0001"); w.Code != 404 || !strings.Contains(w.Body.String(), "N"+told) || !strings.Contains(w.Body.String(), "its host name") {
			t.Errorf("a search leads to %d:\n%s", w.Code, w.Body)
		}
	})
}
