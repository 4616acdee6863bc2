package process

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Torture kills the processes of a herd at random moments.
type Torture struct {
	// Kills is how often the control plane is killed.
	Kills int
	// Both tells to kill the world as well, each time.
	Both bool
	// Seed decides the moments.
	Seed uint64
	// Pause is the longest time from a start to the kill, and a twentieth of it the shortest. About
	// every fourth time is three times as long.
	Pause time.Duration
	// Progress is called with a line for people after each step.
	Progress func(string)
}

// Run starts the herd, kills it again and again while it brings its machines up, lets it finish,
// and checks what is left.
func (t Torture) Run(ctx context.Context, h *Herd) (err error) {
	random := rand.New(rand.NewPCG(t.Seed, 1))
	if err := h.StartWorld(ctx); err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, h.Stop(stop))
	}()
	begun := time.Now()
	for n := range t.Kills {
		if err := h.StartPlane(ctx); err != nil {
			return err
		}
		pause := t.Pause/20 + time.Duration(random.Int64N(int64(t.Pause)*19/20))
		if random.IntN(4) == 0 { // long enough for progress
			pause *= 3
		}
		if err := h.plane.survive(ctx, pause); err != nil {
			return err
		}
		t.Progress(fmt.Sprintf("kill %d of %d, %s after the start: %s", n+1, t.Kills, pause.Round(time.Millisecond), h.progress(ctx)))
		if !t.Both {
			h.KillPlane()
			continue
		}
		if err := t.killBoth(ctx, h, random); err != nil {
			return err
		}
	}
	if err := h.StartPlane(ctx); err != nil {
		return err
	}
	if err := h.AwaitPlane(ctx); err != nil {
		return err
	}
	if err := h.AwaitInstalled(ctx, t.Progress); err != nil {
		return err
	}
	t.Progress(fmt.Sprintf("all installed after %s", time.Since(begun).Round(time.Second)))
	return t.settle(ctx, h)
}

// killBoth kills control plane and world, in random order and soon after each other, and starts the
// world again.
func (t Torture) killBoth(ctx context.Context, h *Herd, random *rand.Rand) error {
	gap := time.Duration(random.Int64N(int64(200 * time.Millisecond)))
	first, second := h.KillPlane, h.KillWorld
	if random.IntN(2) == 0 {
		first, second = second, first
	}
	first()
	if err := wait(ctx, gap); err != nil {
		return err
	}
	second()
	return h.StartWorld(ctx)
}

// settle checks the result while the control plane runs, and the database after it has stopped.
func (t Torture) settle(ctx context.Context, h *Herd) error {
	if err := h.Settle(ctx); err != nil {
		return err
	}
	stop, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancelStop()
	if err := h.plane.Stop(stop); err != nil {
		return err
	}
	h.plane = nil
	return h.CheckDatabase(stop)
}

// progress describes how far the world is, for people.
func (h *Herd) progress(ctx context.Context) string {
	status, err := h.Status(ctx)
	if err != nil {
		return "the world does not answer"
	}
	return fmt.Sprintf("%d devices, %d installed", status.Devices, status.HostStates["installed"])
}

// survive waits. It returns an error if the process ends meanwhile.
func (p *Process) survive(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-p.ended:
		return fmt.Errorf("%s ended by itself: %w: %s", p.name, p.err, p.stderr)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
