package config

import (
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/secret"
)

const (
	// callerLimit is how long callers wait for the files that are named, of which they need none.
	callerLimit = 2 * time.Second
	// callerBlame is how long each of these may take when it is to be found out which do not answer.
	callerBlame = time.Second
)

// LoadServer returns where callers on this host reach the control plane. A value that is wrong, or
// a file, keeps nobody from one that runs: these faults are returned apart. The error is that of
// Load: the configuration cannot be read, has a key that is not known, which may stand for where
// the control plane listens, or names no directory of its own, or one that does not answer.
func LoadServer(sources Sources) (OperatorAPI, Faults, error) {
	return loadServer(sources, callerLimit, callerBlame)
}

func loadServer(sources Sources, limit, blame time.Duration) (OperatorAPI, Faults, error) {
	config, d, err := read(sources, answerLimit)
	if err != nil {
		return OperatorAPI{}, nil, err
	}
	// Callers need the directory: what listens is in it.
	wrong, late := secret.Within(answerLimit, func() (string, error) { return wrongDir(config.Dir), nil })
	misled := len(d.faults) > 0 || wrong != "" || late != nil
	d.checkWithin(config, limit, blame)
	switch {
	case wrong != "":
		d.keyFault("dir", "%s", wrong)
	case late != nil:
		d.fileFault("dir", fmt.Errorf("%s: %w", config.Dir, late))
	}
	// That the checks took long, without a file that does not answer, is nothing to callers.
	faults := slices.DeleteFunc(d.sorted(), func(f Fault) bool { return f.Key == "" && f.Passes })
	if misled {
		return OperatorAPI{}, nil, faults
	}
	return config.OperatorAPI, faults, nil
}
