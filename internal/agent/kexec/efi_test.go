package kexec

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A kernel that makes no use of EFI's runtime services hands nothing of EFI to the next one. From
// Linux 6.6 on that is so for the place of ACPI's tables, too, unless the command line has it.
func TestNoRuntimeServices(t *testing.T) {
	t.Parallel()
	const systab = "ACPI20=0x7fb7e014\nACPI=0x7fb7e000\nSMBIOS=0x7f9c5000\n"
	parameters := make([]byte, 0x1000)
	binary.LittleEndian.PutUint64(parameters[0x70:], 0x7fb7e014)
	for name, test := range map[string]struct {
		files           map[string]string
		arm             bool
		parameter, fail string
		warned          bool
	}{
		"BIOS":                     {files: map[string]string{"sys/firmware/acpi/tables/DSDT": ""}},
		"EFI":                      {files: map[string]string{"sys/firmware/efi/runtime-map/0/type": "", "sys/firmware/efi/systab": systab}},
		"without runtime services": {files: map[string]string{"sys/firmware/efi/systab": systab}, parameter: " acpi_rsdp=0x7fb7e014", warned: true},
		"with old tables":          {files: map[string]string{"sys/firmware/efi/systab": "ACPI=0x7fb7e000\n"}, parameter: " acpi_rsdp=0x7fb7e000", warned: true},
		"with no tables":           {files: map[string]string{"sys/firmware/efi/systab": "SMBIOS=0x7f9c5000\n"}, fail: "would not find the tables of ACPI"},
		"of an older kernel": {
			files: map[string]string{"sys/firmware/efi/systab": systab, "sys/kernel/boot_params/data": string(parameters)}, warned: true,
		},
		"locked down": {
			files: map[string]string{"sys/firmware/efi/systab": systab, "sys/kernel/security/lockdown": "none [integrity] confidentiality\n"},
			fail:  "would not find the tables of ACPI",
		},
		"arm64": {files: map[string]string{"sys/firmware/efi/systab": systab}, arm: true},
	} {
		root := t.TempDir()
		for path, text := range test.files {
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		goarch := "amd64"
		if test.arm {
			goarch = "arm64"
		}
		p := &Plan{root: root}
		err := p.acpi(goarch)
		if p.CommandLine != test.parameter || (err != nil) != (test.fail != "") || err != nil && !strings.Contains(err.Error(), test.fail) {
			t.Errorf("%s: %q, %v", name, p.CommandLine, err)
		}
		if warned := strings.Contains(strings.Join(p.Warnings, "\n"), "runtime services"); warned != test.warned && err == nil {
			t.Errorf("%s: warnings %q", name, p.Warnings)
		}
	}
}

// The kernel in memory tells the next one of EFI only what it was told itself. A machine with EFI
// firmware goes through that where it was told nothing. One before Linux 6.6 hands on where the
// tables of ACPI are.
func TestInstalledSystemFindsACPI(t *testing.T) {
	t.Parallel()
	none := make([]byte, 0x1000)
	told := bytes.Clone(none)
	told[0x77] = 1
	for name, test := range map[string]struct {
		paths      []string
		parameters []byte
		loads      bool
	}{
		"BIOS":                     {nil, none, true},
		"EFI":                      {[]string{"ironherd/efi", "sys/firmware/efi/runtime-map"}, none, true},
		"EFI that nobody tells of": {[]string{"ironherd/efi"}, none, false},
		"of an older kernel":       {[]string{"ironherd/efi"}, told, true},
		"cut":                      {[]string{"ironherd/efi"}, told[:0x77], false},
		"without boot parameters":  {[]string{"ironherd/efi"}, nil, false},
	} {
		root := t.TempDir()
		for _, path := range append(test.paths, "sys/kernel/boot_params") {
			if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if test.parameters != nil {
			if err := os.WriteFile(filepath.Join(root, "sys/kernel/boot_params/data"), test.parameters, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := handsACPI(root); (err == nil) != test.loads {
			t.Errorf("%s: %v", name, err)
		}
	}
}
