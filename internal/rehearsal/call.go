package rehearsal

import (
	"context"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// The answers of a provider that is in trouble.
var (
	errNoAnswer  = fleet.Errorf(fleet.KindTimeout, "the provider did not answer in time")
	errThrottled = &fleet.Error{Kind: fleet.KindThrottled, Message: "the provider was asked too often", RetryAfter: 20 * time.Second}
	errOutage    = temporary("the provider is out of order")
)

// call is one call. What it does is done when the request arrives, whatever has become of its
// sender by then. sent is called when it is sent.
func (s *source) call(ctx context.Context, what string, sent func(), do func() error) error {
	if _, ends := ctx.(until); !ends {
		ctx = until{Context: ctx} //nolint:contextcheck // it is that one, without its end
	}
	return s.inTurn(ctx, func() error {
		sent()
		return s.send(ctx, what, do)
	})
}

// send is a call that is sent.
func (s *source) send(ctx context.Context, what string, do func() error) error {
	w := s.world
	owner := w.current.owner
	s.count(what)
	result := errOutage
	lost := w.hits(LostReplies, "call")
	arrives := !lost || w.chance("lost before", 50)
	throttled := w.hits(Throttled, "call")
	w.after(w.between("request", 20*time.Millisecond, 400*time.Millisecond), func() {
		switch {
		case !arrives || w.on(ProviderOutage):
		case throttled:
			result = errThrottled
		default:
			result = do()
		}
	})
	patience := w.between("reply", 400*time.Millisecond, 1200*time.Millisecond)
	if lost {
		patience = 15 * time.Second
	}
	w.park(patience)
	owner.step()
	if err := over(ctx, owner); err != nil {
		return err
	}
	if lost {
		return errNoAnswer
	}
	if wait := fleet.RetryAfter(result); wait > 0 {
		s.pacer.Hold(ctx, wait)
	}
	return result
}

// unseen is for calls that change nothing.
func unseen() {}

func (s *source) count(what string) {
	s.total[what]++
	if second := s.world.now.Unix(); second != s.second {
		s.second, s.calls = second, 0
	}
	s.calls++
	s.peak = max(s.peak, s.calls)
}
