package agentapi

import (
	"math"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
	"github.com/ironherd/ironherd/internal/fleet"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":            "",
		"  WD-1234 ":  "WD-1234",
		"a\nb\tc":     "a b c",
		"\x1b[31mred": "\ufffd[31mred",
		"Größe":       "Größe",
	} {
		if got := clean(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	if got := clean(strings.Repeat("ü", 1000)); len(got) > maxString || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
		t.Errorf("a long string became %d bytes", len(got))
	}
}

func TestInstallReportsThatCannotBe(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]*agentv1.InstallReport{
		"names no attempt":                     {InstallGeneration: 1},
		"held_install_generation of the":       {InstallGeneration: 1, Attempt: 1, HeldInstallGeneration: 2, Ok: true},
		"that the disk was not to be erased":   {InstallGeneration: 1, Attempt: 1, NeedsErase: true, Ok: true},
		"and that it was not understood":       {InstallGeneration: 1, Attempt: 1, NotUnderstood: true, Ok: true},
		"both that it went well and what went": {InstallGeneration: 1, Attempt: 1, Ok: true, Error: "no"},
	} {
		if _, err := parseInstallReport(r); fleet.KindOf(err) != fleet.KindInvalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestWhatADiskSaysIsBounded: whoever had the installed system may have written anything to the
// disk. It is a failure of the install, and keeps no agent from being heard.
func TestWhatADiskSaysIsBounded(t *testing.T) {
	t.Parallel()
	const most = int64(fleet.MaxInstallGeneration)
	for held, want := range map[int64]fleet.InstallGeneration{
		-1: 0, 0: 0, 7: 7, most: fleet.MaxInstallGeneration, most + 1: 0, math.MaxInt64: 0,
	} {
		fact, err := parseInstallReport(&agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, HeldInstallGeneration: held, HeldAttempt: -1, Error: "held"})
		if err != nil || fact.HeldGeneration != want || fact.HeldAttempt != 0 || fact.Error != "held" {
			t.Errorf("%d: %+v, %v", held, fact, err)
		}
	}
}

func TestInstallWarningsAreBounded(t *testing.T) {
	t.Parallel()
	r := &agentv1.InstallReport{Warnings: []string{"", "\x1b[31m", strings.Repeat("ü", 1000)}}
	for range 100 {
		r.Warnings = append(r.Warnings, "more")
	}
	got := installWarnings(r)
	if len(got) != mostWarnings || got[0] != "\ufffd[31m" || len(got[1]) > maxWarning || !strings.HasSuffix(got[1], "ü…") || got[2] != "more" {
		t.Errorf("kept %q", got)
	}
}

func fit(t *testing.T, s string) {
	t.Helper()
	if len(s) > maxString+len("… (serial )")+maxString || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) && r != utf8.RuneError }) {
		t.Errorf("kept %q", s)
	}
}

// walk shows every string of a message.
func walk(m protoreflect.Message, show func(string)) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		one := func(v protoreflect.Value) {
			switch field.Kind() {
			case protoreflect.StringKind:
				show(v.String())
			case protoreflect.MessageKind:
				walk(v.Message(), show)
			}
		}
		if !field.IsList() {
			one(v)
			return true
		}
		for i := range v.List().Len() {
			one(v.List().Get(i))
		}
		return true
	})
}

// FuzzHeartbeat: whatever an agent sends is refused as invalid, or is fit to be stored and shown.
func FuzzHeartbeat(f *testing.F) {
	seed, err := proto.Marshal(&agentv1.HeartbeatRequest{
		BootId: "b", HardwareReport: &agentv1.HardwareReport{
			System: &agentv1.System{Serial: "\x00\x1b"}, Warnings: []string{"w\n"}, BlockDevices: []*agentv1.BlockDevice{{Name: "sda"}},
		},
		InstallReport: &agentv1.InstallReport{InstallGeneration: 1, Attempt: 1, Error: "e\x07", Warnings: []string{"w\x07"}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var req agentv1.HeartbeatRequest
		if proto.Unmarshal(wire, &req) != nil {
			return
		}
		invalid := func(err error) bool {
			if err != nil && fleet.KindOf(err) != fleet.KindInvalid {
				t.Errorf("kind %s: %v", fleet.KindOf(err), err)
			}
			return err != nil
		}
		invalid(checkHeartbeat(&req))
		if r := req.GetHardwareReport(); r != nil && !invalid(cleanHardware(r)) {
			walk(r.ProtoReflect(), func(s string) { fit(t, s) })
		}
		if r := req.GetInstallReport(); r != nil {
			if fact, err := parseInstallReport(r); !invalid(err) {
				fit(t, fact.Error)
				fit(t, fact.Disk)
				for _, warning := range installWarnings(r) {
					fit(t, warning)
				}
				if fact.OK != (fact.Error == "") {
					t.Errorf("ok is %v with error %q", fact.OK, fact.Error)
				}
			}
		}
	})
}
