package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnAgentOfAnotherArchitectureIsRefused, before anything is fetched: the system would never say
// that it is up.
func TestAnAgentOfAnotherArchitectureIsRefused(t *testing.T) {
	t.Parallel()
	const remedy = ", and an image is for amd64: name ironherd-agent-amd64, which `make agents` makes"
	for name, test := range map[string]struct {
		content []byte
		is      string
	}{
		"arm64":      {program(t, elf.EM_AARCH64), "is for aarch64" + remedy},
		"riscv64":    {program(t, elf.EM_RISCV), "is for riscv" + remedy},
		"i386":       {program(t, elf.EM_386), "is for 386" + remedy},
		"amd64":      {program(t, elf.EM_X86_64), ""},
		"a script":   {[]byte("#!/bin/sh\n"), "is no program for Linux" + remedy},
		"empty":      {nil, "is no program for Linux" + remedy},
		"cut short":  {program(t, elf.EM_X86_64)[:20], "is no program for Linux" + remedy},
		"of windows": {append([]byte("MZ"), make([]byte, 100)...), "is no program for Linux" + remedy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			agent := filepath.Join(dir, "agent")
			if err := os.WriteFile(agent, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			// Where the agent is right the sources are missed, which are looked for beside it.
			options := Options{Output: filepath.Join(dir, "debian.raw"), Agent: agent, Sources: filepath.Join(dir, "sources")}
			_, err := Build(t.Context(), options)
			if err == nil || !strings.Contains(err.Error(), "read the APT sources") {
				t.Fatalf("got %v", err)
			}
			if told := strings.Contains(err.Error(), agent); told != (test.is != "") || !strings.Contains(err.Error(), test.is) {
				t.Errorf("got %v, want %q in it", err, test.is)
			}
		})
	}
}

// program returns the header of a program for an architecture.
func program(t *testing.T, machine elf.Machine) []byte {
	t.Helper()
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: 64,
	}
	var text bytes.Buffer
	if err := binary.Write(&text, binary.LittleEndian, header); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}
