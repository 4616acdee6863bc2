package equinix

import (
	"strings"
	"testing"

	"github.com/ironherd/ironherd/internal/fleet"
)

// TestADeviceOfAnotherProject: a user's token shows a device that was moved to another project of
// the user. The device is not there any more. An answer that tells no project says nothing of that.
func TestADeviceOfAnotherProject(t *testing.T) {
	t.Parallel()
	const other = "11111111-1111-4111-8111-1111111111ff"
	occupied := func(device string) answer {
		return answer{body: strings.Replace(freeReservation, `"device":null`, `"device":`+device, 1)}
	}
	for name, test := range map[string]struct {
		project any
		kind    fleet.Kind
	}{
		"by reference":       {map[string]any{"href": "/metal/v1/projects/" + other}, fleet.KindNotFound},
		"by ID":              {map[string]any{"id": other}, fleet.KindNotFound},
		"ours":               {map[string]any{"href": "/metal/v1/projects/" + projectID}, 0},
		"ours, in capitals":  {map[string]any{"id": strings.ToUpper(projectID)}, 0},
		"none":               {nil, 0},
		"nothing of it":      {map[string]any{}, 0},
		"no UUID":            {map[string]any{"id": "the other one"}, 0},
		"no UUID referenced": {map[string]any{"href": "/metal/v1/projects/other"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, api := newScripted(t)
			request := createRequest()
			request.BeforeCall = neverCalled(t)
			device := deviceJSON(map[string]any{"project": test.project, "tags": []string{string(request.Token)}})
			api.on(getDevice, answer{body: device})
			entry, err := p.Get(t.Context(), device1)
			if fleet.KindOf(err) != test.kind || (err == nil) != (entry.ID == device1) {
				t.Errorf("%+v, %v (%s), want %s", entry, err, fleet.KindOf(err), test.kind)
			}
			if err != nil && !strings.Contains(err.Error(), other) {
				t.Errorf("it does not name the project: %v", err)
			}
			// On a reservation of ours, such a device holds it, and is none of our machines.
			held := test.kind
			if held == fleet.KindNotFound {
				held = fleet.KindConflict
			}
			for _, named := range []string{device, `{"href":"/metal/v1/devices/` + device1 + `"}`} {
				api.on(getReservation, occupied(named))
				if _, err := p.Create(t.Context(), request); fleet.KindOf(err) != held {
					t.Errorf("create: %v (%s), want %s", err, fleet.KindOf(err), held)
				}
			}
		})
	}
}

// TestAProjectInAnotherSpelling: the configuration may spell the ID as any UUID is spelled.
func TestAProjectInAnotherSpelling(t *testing.T) {
	t.Parallel()
	p, api := newScripted(t)
	p.config.Project = strings.ReplaceAll(projectID, "-", "")
	api.on(getDevice, answer{body: deviceJSON(map[string]any{"project": map[string]any{"href": "/metal/v1/projects/" + projectID}})})
	if _, err := p.Get(t.Context(), device1); err != nil {
		t.Error(err)
	}
}
