package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestManySmallFilesFit: a root file system has inodes for all files of its packages, and for those
// that the system makes when it boots, whatever the size of the files is.
func TestManySmallFilesFit(t *testing.T) {
	t.Parallel()
	tool, err := findTools()
	if os.Getenv("CI") == "" && (err != nil || os.Geteuid() != 0) {
		t.Skip("this needs to be root, and the tools of a build: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	tool["debugfs"] = "/bin/true"          // it sets times, inode by inode
	const large, dir = 300 * mebibyte, 500 // mke2fs is slow with large directories
	few, many := t.TempDir(), t.TempDir()
	for tree, files := range map[string]int{few: dir, many: 38_000} {
		for i := range files {
			if err := write(filepath.Join(tree, fmt.Sprint(i/dir), fmt.Sprint(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(filepath.Join(tree, "large"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(filepath.Join(tree, "large"), large); err != nil { // it is a hole
			t.Fatal(err)
		}
	}
	for name, test := range map[string]struct {
		tree  string
		size  int64 // of the root; 0: what is needed
		spare int   // inodes, at least; 0: bootInodes
		fails string
	}{
		"of the default size": {tree: many},
		"few files":           {tree: few},
		"of a size asked for": {tree: many, size: 520 * mebibyte},
		"of a small size":     {tree: many, size: 480 * mebibyte, spare: 480*mebibyte/bytesPerInodeSmall - 40_000},
		"of too small a size": {tree: many, size: 385 * mebibyte, fails: "the packages do not fit: the image must have at least 457 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &builder{Options: Options{}.withDefaults(), tool: tool, work: t.TempDir()}
			if test.size > 0 {
				b.Size = rootOffset + test.size + tailSize
			}
			err := b.makeRoot(t.Context(), test.tree)
			if test.fails != "" {
				if err == nil || err.Error() != test.fails {
					t.Errorf("it is made: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := b.run(t.Context(), nil, "dumpe2fs", "-h", b.rootPath())
			if err != nil {
				t.Fatal(err)
			}
			_, left, _ := strings.Cut(text, "Free inodes:")
			left, _, _ = strings.Cut(left, "\n")
			if n, err := strconv.Atoi(strings.TrimSpace(left)); err != nil || n < max(test.spare, bootInodes) {
				t.Errorf("it has %d inodes left, %v", n, err)
			}
		})
	}
}
