package bmdbtest

import (
	"time"

	"github.com/ironherd/ironherd/internal/bmdb"
	"github.com/ironherd/ironherd/internal/fleet"
)

// suspectTests are of which silences count, and of which of them are known.
var suspectTests = []test{
	// I10
	{"hosts that a person has marked as installed have answered nobody, and do not stop recovery", func(w *world) {
		p := w.suspecting(2)
		for _, id := range w.machines(nil, "c1", "c2", "c3") {
			w.mark(id)
			w.must(errorOf2(w.db.RequestInstall(w.ctx, actor, id, fleet.InstallRequest{Image: image}, true)))
			if s := w.state(id); s != fleet.StateProvided {
				w.Fatalf("state %s", s)
			}
		}
		for _, work := range w.claim(w.lasting("initializer"), fleet.ProcessAgentStart, 5) {
			w.must(work.Fail(w.ctx, bmdb.Failure{Cause: "no answer", Backoff: hours, Answer: fleet.AnswerNone}))
		}
		w.shift.Advance(p.NeverSpokeAfter + time.Minute)
		w.watch("")
	}},
	// I10
	{"a silence that is known stays so for who lets recovery go on, until few are silent", func(w *world) {
		p := w.suspecting(2)
		w.listening()
		comeUp := w.written("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("8 of 8 installed systems did not come up: the fault is probably ours (listener, network, certificate, clock)")
		for _, up := range comeUp[3:] {
			up()
		}
		w.watch("") // 3 of 8 are neither many nor few
		w.must(w.db.ResumeRecovery(w.ctx, actor, "the switch is back"))
		w.written("c9", "c10")
		w.shift.Advance(p.BootTimeout + time.Minute)
		w.watch("")
	}},
}
