// Command installbench measures what an install costs beside the programs that people write images
// with. `make bench-install` prints the table.
//
// One image with holes is written to one loop device in turns: by the agent's install, by `zstd -dc
// | dd`, and by bmaptool; and the parts are measured alone: decoding to nowhere, writing the same
// blocks from memory, and hashing. Every turn ends when the device is synced, and begins with the
// device discarded, so that each finds it alike. The agent's install, and bmaptool, read the same
// compressed file; the agent gets it over HTTP on loopback. What an install holds in memory is that
// of a process of its own, which does nothing else.
//
// It needs root, for loop devices, and zstd, bmaptool and losetup (make setup).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

// settings are the flags.
type settings struct {
	sizes  string
	rounds int
	holes  float64
	dir    string
	child  string
}

func main() {
	var s settings
	flag.StringVar(&s.sizes, "sizes", "4096", "sizes of images in MiB, by commas; the first is compared, of the others only memory is measured")
	flag.IntVar(&s.rounds, "rounds", 3, "turns of each way; the median counts")
	flag.Float64Var(&s.holes, "holes", 0.4, "share of the image that is zeros")
	flag.StringVar(&s.dir, "dir", os.TempDir(), "directory for image and disk; it takes three times the largest size")
	flag.StringVar(&s.child, "child", "", "for the program itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	var err error
	if s.child != "" {
		err = child(ctx, s.child)
	} else {
		err = run(ctx, s)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "installbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) (err error) {
	var sizes []int64
	for text := range strings.SplitSeq(s.sizes, ",") {
		var n int64
		if _, err := fmt.Sscan(text, &n); err != nil || n < 64 {
			return fmt.Errorf("-sizes has %q: want numbers of MiB, at least 64", text)
		}
		sizes = append(sizes, n<<20)
	}
	dir, err := os.MkdirTemp(s.dir, "installbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for i, size := range sizes {
		if err := compare(ctx, s, dir, size, i == 0); err != nil {
			return err
		}
	}
	return nil
}

// compare measures with an image of that size: every way in turns, or the install alone.
func compare(ctx context.Context, s settings, dir string, size int64, everything bool) (err error) {
	fmt.Fprintf(os.Stderr, "making an image of %d MiB…\n", size>>20)
	image, err := makeImage(ctx, dir, size, s.holes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, image.remove()) }()
	disk, err := newDisk(ctx, dir, size+16<<20)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.remove()) }()
	ways, rounds := []way{{"agent", installed}}, 1
	if everything {
		rounds = s.rounds
		ways = append(ways, way{"zstd | dd", zstdDD}, way{"bmaptool", bmaptool}, way{"decode alone", decodeAlone}, way{"write alone", writeAlone}, way{"hash alone", hashAlone})
	}
	results := map[string][]cost{}
	for range rounds {
		for _, w := range ways {
			if err := disk.discard(ctx); err != nil {
				return err
			}
			c, err := w.do(ctx, image, disk)
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			results[w.name] = append(results[w.name], c)
		}
	}
	report(size, image, ways, results)
	return nil
}

// cost is what one turn took.
type cost struct {
	wall, cpu time.Duration
	memory    int64 // largest resident set, in bytes; 0 where several processes or none
}

type way struct {
	name string
	do   func(ctx context.Context, image *diskImage, disk *loop) (cost, error)
}

func median[T int64 | time.Duration](costs []cost, of func(cost) T) T {
	var all []T
	for _, c := range costs {
		all = append(all, of(c))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

func report(size int64, image *diskImage, ways []way, results map[string][]cost) {
	wall := func(name string) time.Duration {
		if len(results[name]) == 0 {
			return 0
		}
		return median(results[name], func(c cost) time.Duration { return c.wall })
	}
	fmt.Printf("\n%d MiB, %.0f %% of it zeros, %d MiB compressed\n\n", size>>20, 100*image.zeros, image.compressed>>20)
	fmt.Printf("| %-13s | %8s | %10s | %8s |\n|%s|%s|%s|%s|\n", "", "wall", "processor", "memory", "---------------", "----------", "------------", "----------")
	for _, w := range ways {
		memory := "–"
		if m := median(results[w.name], func(c cost) int64 { return c.memory }); m > 0 {
			memory = fmt.Sprintf("%.0f MiB", float64(m)/(1<<20))
		}
		fmt.Printf("| %-13s | %7.2fs | %9.2fs | %8s |\n", w.name, wall(w.name).Seconds(),
			median(results[w.name], func(c cost) time.Duration { return c.cpu }).Seconds(), memory)
	}
	if len(ways) == 1 {
		return
	}
	slower := max(wall("decode alone"), wall("write alone"))
	fmt.Println()
	for _, line := range []struct {
		what  string
		ratio float64
		goal  float64
	}{
		{"agent ÷ the slower of decoding and writing alone", wall("agent").Seconds() / slower.Seconds(), 1.10},
		{"agent ÷ zstd | dd", wall("agent").Seconds() / wall("zstd | dd").Seconds(), 0.60},
		{"agent ÷ bmaptool", wall("agent").Seconds() / wall("bmaptool").Seconds(), 1.00},
	} {
		verdict := "met"
		if line.ratio > line.goal {
			verdict = "missed"
		}
		fmt.Printf("%-50s %.2f (goal ≤ %.2f: %s)\n", line.what, line.ratio, line.goal, verdict)
	}
}
