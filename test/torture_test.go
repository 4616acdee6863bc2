package test

import (
	"testing"
	"time"

	"github.com/ironherd/ironherd/test/process"
)

// A sample of what `make torture` does at length.
func TestTorture(t *testing.T) {
	t.Parallel()
	for name, torture := range map[string]process.Torture{
		"control plane":           {Kills: 6, Pause: 2 * time.Second, Seed: 1},
		"control plane and world": {Kills: 4, Pause: 3 * time.Second, Seed: 2, Both: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			torture.Progress = func(line string) { t.Log(line) }
			herd := &process.Herd{Ironherd: ironherd, Dir: shortDir(t), Machines: 12}
			if err := torture.Run(bounded(t, 4*time.Minute), herd); err != nil {
				t.Fatal(err)
			}
		})
	}
}
