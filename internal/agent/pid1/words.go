package pid1

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

const (
	// wordsName is the variable that holds the last words: its name, and our vendor GUID.
	wordsName = "IronherdLastWords-4c2f0c3a-6a5e-4b0f-9a57-1f1b6d2c9e70"
	// wordsKept says how the firmware keeps it: beyond a restart, and for the operating system too.
	wordsKept = 0x7 // EFI_VARIABLE_NON_VOLATILE | BOOTSERVICE_ACCESS | RUNTIME_ACCESS
	maxWords  = 1 << 10
)

// errNoEFI says that the machine keeps no words.
var errNoEFI = errors.New("the machine has no EFI variables")

// WriteLastWords leaves words for the system that is booted next.
func WriteLastWords(words *agentv1.LastWords) error {
	for len(words.GetCause()) > 0 && proto.Size(words) > maxWords {
		words.Cause = words.GetCause()[:len(words.GetCause())/2]
	}
	data, err := proto.Marshal(words)
	if err != nil {
		return fmt.Errorf("encode the last words: %w", err)
	}
	path := filepath.Join(efiVariables, wordsName)
	if _, err := os.Stat(efiVariables); err != nil {
		return errNoEFI
	}
	clearImmutable(path)
	// One write is one call of the firmware.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the variable: %w", err)
	}
	_, err = file.Write(append(binary.LittleEndian.AppendUint32(nil, wordsKept), data...))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write the variable: %w", err)
	}
	return nil
}

// ReadLastWords returns the words that the last agent in memory has left below root, nil where
// there are none that can be understood. They stay: a takeover generation is never used twice.
func ReadLastWords(root string) *agentv1.LastWords {
	data, err := os.ReadFile(filepath.Join(root, efiVariables, wordsName))
	if errors.Is(err, fs.ErrNotExist) || err != nil || len(data) < 4 || len(data) > 4+maxWords {
		return nil
	}
	words := new(agentv1.LastWords)
	if proto.Unmarshal(data[4:], words) != nil {
		return nil
	}
	return words
}

// clearImmutable makes a variable writable that the kernel protects against an rm of everything.
func clearImmutable(path string) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	const immutable = 0x10 // FS_IMMUTABLE_FL
	flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil && flags&immutable != 0 {
		_ = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags&^immutable)
	}
}
