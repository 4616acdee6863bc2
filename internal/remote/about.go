package remote

import (
	"context"
	"errors"
	"fmt"
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
var answer = regexp.MustCompile(`^(?s)(.*?)([A-Za-z0-9_.-]{1,64})\n([0-9]{1,10})\n$`)

// ask asks the host what it is, before anything is written to it. Whatever keeps commands from
// running there, or their output from being read, shows in the answer.
func (h *Host) ask(ctx context.Context) (about, error) {
	const what = "ask the host what it is"
	output, err := h.line(ctx, what, "uname -m && id -u", Command{OutputLimit: 64 << 10, OnStderr: func(string) {}})
	if exit, exited := errors.AsType[*ExitError](err); exited {
		switch {
		case exit.Status == notFound:
			return about{}, nil
		case exit.hint() == "":
			return about{}, fmt.Errorf("%w (%s)", err, hintOtherCommand)
		}
		return about{}, err
	}
	if fleet.KindOf(err) == fleet.KindInvalid { // too long
		return about{}, fmt.Errorf("%w (%s)", err, hintOtherCommand)
	}
	if err != nil {
		return about{}, err
	}
	found := answer.FindSubmatch(output)
	if found == nil {
		return about{}, fleet.Errorf(fleet.KindInvalid, "%s: it answered %s (%s)", what, Quote(string(output)), hintOtherCommand)
	}
	if len(found[1]) > 0 {
		return about{}, fleet.Errorf(fleet.KindInvalid, "%s: before the answer it wrote %s (%s)", what, Quote(string(found[1])), hintNoise)
	}
	uid, err := strconv.ParseUint(string(found[3]), 10, 32)
	if err != nil {
		return about{}, fleet.Errorf(fleet.KindInvalid, "%s: %s is no user ID", what, Quote(string(found[3])))
	}
	return about{machine: string(found[2]), uid: uint32(uid)}, nil
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
