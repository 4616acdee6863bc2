package agentapi_test

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ironherd/ironherd/internal/fleet"
)

// plainFields are the fields that the request of every install may have: all agents that refuse
// what they do not understand know them. No field is added here.
var plainFields = []string{
	"attempt", "boot_token", "boot_token.attempt", "boot_token.ca_certificate", "boot_token.endpoint", "boot_token.install_generation",
	"boot_token.machine_id", "boot_token.made_at", "boot_token.made_at.nanos", "boot_token.made_at.seconds", "boot_token.secret", "image", "image.compression", "image.digest",
	"image.size", "image.url", "install_generation", "machine_name", "root_disk", "root_disk.pick", "timeout_ms",
}

// TestPlainInstallsHaveNoNewFields: a field that is set without need has every agent of an older
// version refuse every install, until somebody restarts its machine.
func TestPlainInstallsHaveNoNewFields(t *testing.T) {
	t.Parallel()
	h := newFixture(t, nil)
	plain := image()
	plain.Image.Compression, plain.Image.Kexec, plain.Image.Architecture, plain.FirstBootData = fleet.CompressionNone, false, "", nil
	m := h.machines(1, plain)[0]
	order := h.heartbeat(h.dial(m.key), m.withReport()).GetInstallRequest()
	if order == nil {
		t.Fatal("no install was handed out")
	}
	for _, field := range setFields(order.ProtoReflect(), "") {
		if !slices.Contains(plainFields, field) {
			t.Errorf("a plain install has %s: agents of older versions refuse it", field)
		}
	}
}

// setFields are the fields that are set in a message, and in those within.
func setFields(m protoreflect.Message, within string) (fields []string) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		name := within + string(field.Name())
		fields = append(fields, name)
		if field.Message() != nil && !field.IsList() && !field.IsMap() {
			fields = append(fields, setFields(value.Message(), name+".")...)
		}
		return true
	})
	return fields
}
