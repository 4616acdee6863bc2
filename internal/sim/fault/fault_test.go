package fault_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironherd/ironherd/internal/sim/fault"
)

func set(t interface{ Fatal(...any) }, spec string, seed uint64, before ...fault.Count) *fault.Set {
	parsed, err := fault.Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	return fault.NewSet(parsed, seed, before, nil)
}

func TestAShareIsKeptInEveryRun(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		percent := rapid.SampledFrom([]string{"1%", "5%", "33.3%", "50%", "90%", "100%"}).Draw(t, "share")
		share := map[string]float64{"1%": .01, "5%": .05, "33.3%": .333, "50%": .5, "90%": .9, "100%": 1}[percent]
		s := set(t, "slow="+percent, rapid.Uint64().Draw(t, "seed"))
		n := rapid.IntRange(1, 2000).Draw(t, "opportunities")
		fired := 0
		for i := range n {
			shot, ok := s.Fire(fault.Slow)
			if !ok {
				continue
			}
			if fired++; shot.Number != fired || shot.Duration != time.Second {
				t.Fatalf("shot %+v, want number %d", shot, fired)
			}
			if d := math.Abs(float64(fired) - share*float64(i+1)); d > 2 {
				t.Fatalf("%d of %d fired, want a share of %v", fired, i+1, share)
			}
		}
		if math.Abs(float64(fired)-share*float64(n)) > 2 {
			t.Fatalf("%d of %d fired, want a share of %v", fired, n, share)
		}
	})
}

func TestSeedAndRestartDecideNothingElse(t *testing.T) {
	t.Parallel()
	positions := func(s *fault.Set, n int) (at []int) {
		for i := range n {
			if _, ok := s.Fire(fault.LostReply); ok {
				at = append(at, i)
			}
		}
		return at
	}
	whole := positions(set(t, "lost-reply=5%", 7), 400)
	if again := positions(set(t, "lost-reply=5%", 7), 400); !slices.Equal(whole, again) {
		t.Errorf("same seed: %v, then %v", whole, again)
	}
	if other := positions(set(t, "lost-reply=5%", 8), 400); slices.Equal(whole, other) {
		t.Errorf("another seed: the same %v", other)
	}
	first := set(t, "lost-reply=5%", 7)
	head := positions(first, 150)
	for _, i := range positions(set(t, "lost-reply=5%", 7, first.Counts()...), 250) {
		head = append(head, i+150)
	}
	if !slices.Equal(whole, head) {
		t.Errorf("with a restart: %v, without: %v", head, whole)
	}
}

func TestScriptedFaults(t *testing.T) {
	t.Parallel()
	s := set(t, "ssh-refused=#4+1, 500=#2", 1)
	var got []int
	for i := range 10 {
		if _, ok := s.Fire(fault.SSHRefused); ok {
			got = append(got, i+1)
		}
	}
	if !slices.Equal(got, []int{1, 4}) {
		t.Errorf("fired at %v, want 1 and 4", got)
	}
	want := []fault.Count{{Fault: "500"}, {Fault: "ssh-refused", Opportunities: 10, Fired: 2}}
	if counts := s.Counts(); !slices.Equal(counts, want) {
		t.Errorf("counts %+v, want %+v", counts, want)
	}
}

func TestParseNamesEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := fault.Parse("lost-reply=5%,lost-reply=1%,nonsense=5%,429=5,slow=5%:soon,500=5%:1s,502=#0,429-bare,agent-start=0%,ssh-dropped=101%")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`"lost-reply" is given twice`, `unknown fault "nonsense"`, `"429": "5" is not a share`, `"slow": "soon" is not a positive duration`,
		`"500" takes no duration`, `"502": "0" is not the number`, `"429-bare": want NAME`, `"agent-start": "0%"`, `"ssh-dropped": "101%"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("lost-reply=5%,429=5%:2s,agent-start=#1+3")
	f.Add("slow=NaN%")
	f.Fuzz(func(t *testing.T, text string) {
		spec, err := fault.Parse(text)
		if err != nil {
			return
		}
		s := fault.NewSet(spec, 1, nil, nil)
		for _, kind := range fault.Kinds() {
			s.Fire(kind)
		}
	})
}
