package remote

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"

	"github.com/ironherd/ironherd/internal/fleet"
)

// about is what a host says of itself.
type about struct {
	// machine is the architecture as uname names it. Empty: the host has no such command.
	machine string
	// uid is the user's.
	uid uint32
}

// what the host answers to ask.
var aboutAnswer = regexp.MustCompile(`^([A-Za-z0-9_.-]{1,64})\n([0-9]{1,10})\n$`)

// ask asks the host what it is, before anything is written to it, and remembers the answer.
// Whatever keeps commands from running there, or their output from being read, shows in it.
func (h *Host) ask(ctx context.Context) (about, error) {
	h.asking.Lock()
	defer h.asking.Unlock()
	if h.known != nil {
		return *h.known, nil
	}
	const what = "ask the host what it is"
	output, err := h.line(ctx, what, "uname -m && id -u", Command{OutputLimit: 4 << 10, OnStderr: func(string) {}})
	if exit, exited := errors.AsType[*ExitError](err); exited && exit.Status == notFound && !exit.other {
		return about{}, nil
	}
	if err != nil {
		return about{}, err
	}
	found := aboutAnswer.FindSubmatch(output)
	if found == nil {
		return about{}, fleet.Errorf(fleet.KindInvalid, "%s: it answered %s (%s)", what, Quote(string(output)), hintOtherCommand)
	}
	uid, err := strconv.ParseUint(string(found[2]), 10, 32)
	if err != nil {
		return about{}, fleet.Errorf(fleet.KindInvalid, "%s: %s is no user ID", what, Quote(string(found[2])))
	}
	h.known = &about{machine: string(found[1]), uid: uint32(uid)}
	return *h.known, nil
}

// Choose returns the first content that the host executes: it asks the host for its architecture.
// Content that is no program of a certain architecture suits every host. The error is of kind
// Unsupported when there is none.
func (h *Host) Choose(ctx context.Context, contents ...*Content) (*Content, error) {
	about, err := h.ask(ctx)
	if err != nil {
		return nil, err
	}
	var there []string
	for _, content := range contents {
		architecture := content.Architecture()
		if executes(about.machine, architecture) {
			return content, nil
		}
		there = append(there, architecture)
	}
	return nil, fleet.Errorf(fleet.KindUnsupported, "the host is %s, and the program is built for %s only", about.machine, strings.Join(there, " and "))
}

// executes reports whether a kernel that calls its machine so executes programs of the architecture
// in the notation of ELF. It only says no where that is certain.
func executes(machine, architecture string) bool {
	known := map[string][]string{
		"x86_64":  {"x86_64", "amd64"},
		"i386":    {"i386", "i486", "i586", "i686", "x86_64", "amd64"},
		"aarch64": {"aarch64", "arm64"},
		"arm":     {"arm", "aarch64", "arm64"},
		"riscv":   {"riscv"},
		"ppc64":   {"ppc64"},
		"s390":    {"s390"},
	}
	names, listed := known[architecture]
	if !listed || machine == "" {
		return true
	}
	for _, name := range names {
		if strings.HasPrefix(machine, name) {
			return true
		}
	}
	return false
}
