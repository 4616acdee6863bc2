package webui

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	fleetv1 "github.com/ironherd/ironherd/api/fleet/v1"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		boundedCount(9999): "9\u202f999", boundedCount(10000): "10\u202f000+",
		grouped(0): "0", grouped(-1234): "-1\u202f234", grouped(999): "999", grouped(1234567): "1\u202f234\u202f567",
		countOf(1, "core", "cores"): "1 core", countOf(2000, "core", "cores"): "2\u202f000 cores",
		binary(0): "0 B", binary(1536): "1.5 KiB", binary(1 << 30): "1 GiB", binary(251 << 30): "251 GiB", binary(math.MaxInt64): "8192 PiB",
		decimal(3840755982336): "3.8 TB", decimal(480103981056): "480 GB",
		relativeTime(0): "now", relativeTime(-1500 * time.Millisecond): "in 1 s", relativeTime(99 * time.Second): "99 s ago", relativeTime(100 * time.Second): "1 min ago",
		relativeTime(100 * time.Minute): "1 h ago", relativeTime(48 * time.Hour): "2 d ago",
		durationText(nil): "–", durationText(durationpb.New(412 * time.Millisecond)): "412 ms", durationText(durationpb.New(95 * time.Second)): "95.0 s",
		durationText(durationpb.New(211 * time.Second)): "3 min 31 s", durationText(durationpb.New(7261 * time.Second)): "2 h 01 min",
		sentence("no such thing"): "No such thing.", sentence("Élan."): "Élan.", sentence("\xff"): "\xff", sentence(""): "",
		tail(first): "…5454d430", cut("abc", 1, 9): "bc", cut("abc", 5, 9): "", cut("aé", 0, 2): "a",
		machineURL("metal/a b%/../x"): "/machines/metal/a%20b%25/../x",
		providerURL("a&b"):            "/machines?provider=a%26b",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestKnown(t *testing.T) {
	t.Parallel()
	for _, unset := range []*timestamppb.Timestamp{nil, {}, {Seconds: math.MaxInt64}, {Seconds: 1, Nanos: -1}, timestamppb.New(time.Time{})} {
		if known(unset) {
			t.Errorf("%v counts as an instant", unset)
		}
	}
	if !known(timestamppb.New(instant("03:12:00"))) {
		t.Error("an instant does not count")
	}
}

// TestShortest: what is shown of the IDs of a page tells each from the others.
func TestShortest(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfDistinct(rapid.StringMatching(`[01]{16}`), rapid.ID[string]).Draw(t, "ids")
		length, common := distinctLength(ids)
		seen := map[string]bool{}
		for _, id := range ids {
			short := cut(id, 0, length)
			if seen[short] || len(short) < 8 || !strings.HasPrefix(ids[0], cut(id, 0, common)) {
				t.Fatalf("%d, %d does not tell %v apart", length, common, ids)
			}
			seen[short] = true
		}
	})
}

// TestSegments: the bar is full, in order, without overlap, and nothing in it is too thin to see.
func TestSegments(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var counts []*fleetv1.StateCount
		for _, name := range rapid.Permutation(append(stateNames(), "unheard of")).Draw(t, "names") {
			n := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(-1, 3), rapid.Int64Range(0, 1e6)).Draw(t, "machines")
			counts = append(counts, &fleetv1.StateCount{State: name, Machines: n})
		}
		x := 0.0
		all := segments(shares(counts))
		for i, s := range all {
			if s.machines <= 0 || s.width < thinnestPart || math.Abs(s.x-x) > 1e-6 {
				t.Fatalf("segment %d: %+v, expected at %f", i, s, x)
			}
			x = s.x + s.width + barGap
		}
		if len(all) > 0 && math.Abs(x-barGap-barWidth) > 1e-6 {
			t.Fatalf("the bar ends at %f", x-barGap)
		}
	})
}

// FuzzReference: whatever is put into the search field leads to a page of this site, and to no
// other.
func FuzzReference(f *testing.F) {
	for _, seed := range []string{"herd-0001", "metal/aa10", "//evil.example", `\\evil`, "..", "a?b#c", "%2f", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := machineReference(s)
		if err != nil {
			return
		}
		if target := machineURL(ref); !strings.HasPrefix(target, "/machines/") || strings.ContainsAny(target, "?#\\ \r\n\"<>") {
			t.Errorf("%q leads to %q", s, target)
		}
	})
}
