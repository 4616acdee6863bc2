package reconciler

import (
	"context"
	"errors"
	"testing"
	"time"
)

// publishing is a hand on the resources that people are shown.
type publishing struct {
	*hand
	shown chan Standing
	fails chan error // what the next calls answer
}

func (p *publishing) Publish(ctx context.Context, s Standing) error {
	select {
	case p.shown <- s:
	case <-ctx.Done():
	}
	select {
	case err := <-p.fails:
		return err
	default:
		return nil
	}
}

// TestPublish: the leader, and nobody else, shows how things stand: that it is blocked and by whom,
// and what it does when it no longer is. An error of it changes nothing, and it goes on.
func TestPublish(t *testing.T) {
	t.Parallel()
	client, layout := shared.Client(t), ownLayout()
	register(t, client, layout, "n1", "v2.0.0")
	register(t, client, layout, "n2", "v1.0.0") // its API server may serve
	if _, err := client.Put(t.Context(), layout.Status(), `{"state":"done","version":"v1.0.0","minimumCompatible":"v1.0.0"}`); err != nil {
		t.Fatal(err)
	}
	var r resources
	leader := &publishing{hand: r.hand("v2.0.0"), shown: make(chan Standing), fails: make(chan error, 2)}
	other := &publishing{hand: r.hand("v1.0.0"), shown: make(chan Standing, 1)}
	for name, p := range map[string]*publishing{"n1": leader, "n2": other} {
		startSourced(t, client, Config{
			Node: name, Build: build(p.release, p.release, p.release), Layout: layout, Settle: time.Millisecond, FullPass: 100 * time.Millisecond,
		}, struct {
			Applier
			Publisher
		}{p, p}) // no Identifier: nobody asks which cluster it is
	}
	shown := func(what string, so func(Standing) bool) {
		t.Helper()
		late := time.After(2 * time.Minute)
		for {
			select {
			case s := <-leader.shown:
				if so(s) {
					return
				}
			case <-late:
				t.Fatalf("not shown: %s", what)
			}
		}
	}
	leader.fails <- errors.New("the API server is away")
	shown("what blocks", func(s Standing) bool {
		return s.Leader == "n1" && s.Release == v("v2.0.0") && s.Blocked != "" && s.Doing == "holding: "+s.Blocked &&
			s.Status == done("v1.0.0", "v1.0.0").String()
	})
	r.set(func(r *resources) { r.broken, r.optional = errBroken, true })
	register(t, client, layout, "n2", "v2.0.0")
	shown("what fails", func(s Standing) bool {
		return s.Blocked == "" && s.PassError == errBroken.Error() && s.Status == done("v2.0.0", "v2.0.0").String()
	})
	r.set(func(r *resources) { r.broken = nil })
	shown("that all is well", func(s Standing) bool { return s.PassError == "" })
	select {
	case s := <-other.shown:
		t.Errorf("a node that does not lead has shown %+v", s)
	default:
	}
}
