package equinixapi_test

import (
	"testing"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/sim/equinixapi"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	c := r.client()
	project := r.api.ProjectID()
	create := func(label, key, project string) (*packngo.SSHKey, error) {
		k, _, err := c.SSHKeys.Create(&packngo.SSHKeyCreateRequest{Label: label, Key: key, ProjectID: project})
		return k, err
	}
	mine, err := create("mine", publicKey(t, 1), "")
	if err != nil {
		t.Fatal(err)
	}
	ours, err := create("ours", publicKey(t, 2), project)
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"twice":    second(create("again", publicKey(t, 1), "")),
		"no label": second(create("", publicKey(t, 3), "")),
		"no key":   second(create("bad", "ssh-ed25519 AAAA", "")),
	} {
		if statusOf(err) != 422 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if all := must[[]packngo.SSHKey](t)(c.SSHKeys.List()); len(all) != 2 {
		t.Errorf("the user's keys: %v", all)
	}
	if some := must[[]packngo.SSHKey](t)(c.Projects.ListSSHKeys(project, nil)); len(some) != 1 || some[0].ID != ours.ID {
		t.Errorf("the project's keys: %v", some)
	}
	label := "renamed"
	if k := must[*packngo.SSHKey](t)(c.SSHKeys.Update(mine.ID, &packngo.SSHKeyUpdateRequest{Label: &label})); k.Label != label {
		t.Errorf("updated: %v", k)
	}
	keysOn := func(change func(*packngo.DeviceCreateRequest)) int {
		q := request("c3.small.x86", "any", "")
		q.ProjectID = project
		change(q)
		d := must[*packngo.Device](t)(c.Devices.Create(q))
		d = must[*packngo.Device](t)(c.Devices.Get(d.ID, &packngo.GetOptions{Includes: []string{"ssh_keys"}}))
		for _, k := range d.SSHKeys {
			if k.Key == "" {
				t.Errorf("key %v is not included", k)
			}
		}
		return len(d.SSHKeys)
	}
	for want, change := range map[int]func(*packngo.DeviceCreateRequest){
		2: func(*packngo.DeviceCreateRequest) {},
		1: func(q *packngo.DeviceCreateRequest) { q.ProjectSSHKeys = []string{ours.ID} },
		0: func(q *packngo.DeviceCreateRequest) { q.NoSSHKeys = true },
	} {
		if got := keysOn(change); got != want {
			t.Errorf("%d keys, want %d", got, want)
		}
	}
	if _, err := c.SSHKeys.Delete(mine.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.SSHKeys.Get(mine.ID, nil); statusOf(err) != 404 {
		t.Errorf("after the delete: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestProjectsAndCatalogue(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(cfg *equinixapi.Config) { cfg.Spares = 1 })
	c := r.client()
	p := must[*packngo.Project](t)(c.Projects.Create(&packngo.ProjectCreateRequest{Name: "second"}))
	name := "renamed"
	if p = must[*packngo.Project](t)(c.Projects.Update(p.ID, &packngo.ProjectUpdateRequest{Name: &name})); p.Name != name {
		t.Errorf("project %+v", p)
	}
	if list := must[[]packngo.Project](t)(c.Projects.List(nil)); len(list) != 2 {
		t.Errorf("projects %v", list)
	}
	user := must[*packngo.User](t)(c.Users.Current())
	org := must[*packngo.Organization](t)(c.Organizations.Get(user.DefaultOrganizationID, &packngo.GetOptions{Includes: []string{"projects"}}))
	if len(org.Projects) != 2 || org.Projects[0].Name == "" {
		t.Errorf("organization %+v", org)
	}
	var spare packngo.HardwareReservation
	for _, res := range must[[]packngo.HardwareReservation](t)(c.HardwareReservations.List(r.api.ProjectID(), nil)) {
		if res.Spare {
			spare = res
		}
	}
	if spare.ID == "" || spare.Provisionable {
		t.Errorf("spare %+v", spare)
	}
	moved := must[*packngo.HardwareReservation](t)(c.HardwareReservations.Move(spare.ID, p.ID))
	if moved.Project.URL == "" {
		t.Errorf("moved %+v", moved)
	}
	if list := must[[]packngo.HardwareReservation](t)(c.HardwareReservations.List(p.ID, nil)); len(list) != 1 {
		t.Errorf("reservations of the second project: %v", list)
	}
	if plans := must[[]packngo.Plan](t)(c.Plans.List(nil)); len(plans) != 2 || plans[0].Specs.Memory.Total != "32GB" || len(plans[0].AvailableInMetros) == 0 {
		t.Errorf("plans %v", plans)
	}
	if metros := must[[]packngo.Metro](t)(c.Metros.List(nil)); len(metros) <= len(equinixapi.Metros()) {
		t.Errorf("metros %v", metros)
	}
	if systems := must[[]packngo.OS](t)(c.OperatingSystems.List()); len(systems) == 0 || len(systems[0].ProvisionableOn) != 2 {
		t.Errorf("operating systems %v", systems)
	}
	if facilities := must[[]packngo.Facility](t)(c.Facilities.List(nil)); len(facilities) == 0 || facilities[0].Address != nil {
		t.Errorf("facilities %v", facilities)
	}
	report := must[*packngo.CapacityReport](t)(c.CapacityService.ListMetros())
	if (*report)["am"]["c3.small.x86"].Level != "normal" || (*report)["ty"]["c3.small.x86"].Level != "unavailable" {
		t.Errorf("capacity %v", report)
	}
	must[*packngo.HardwareReservation](t)(c.HardwareReservations.Move(spare.ID, r.api.ProjectID()))
	if _, err := c.Projects.Delete(p.ID); err != nil {
		t.Error(err)
	}
}
