package equinix

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

var (
	_ provider.Rebooter    = (*Provider)(nil)
	_ provider.Powerer     = (*Provider)(nil)
	_ provider.Reinstaller = (*Provider)(nil)
	_ provider.Releaser    = (*Provider)(nil)
)

// A power cycle asks again and again whether the device is off: first after firstLook, then after
// twice as long each time, up to longestLook. It gives up after offPatience. The API takes 40 s to
// turn a device off.
const (
	firstLook   = time.Second
	longestLook = 10 * time.Second
	offPatience = 5 * time.Minute
)

// Reboot asks for a reboot. A device that is off, or on its way, is a conflict.
func (p *Provider) Reboot(ctx context.Context, id fleet.ProviderID) error {
	return p.act(ctx, "reboot", id, func(devices packngo.DeviceService) (*packngo.Response, error) {
		return devices.Reboot(string(id))
	})
}

// PowerOn asks that a device be turned on. It succeeds when the device is on already, or is being
// turned on.
func (p *Provider) PowerOn(ctx context.Context, id fleet.ProviderID) error {
	return p.act(ctx, "turn on", id, func(devices packngo.DeviceService) (*packngo.Response, error) {
		return devices.PowerOn(string(id))
	}, "active", "powering_on")
}

// PowerOff asks that a device be turned off. It succeeds when the device is off already, or is
// being turned off.
func (p *Provider) PowerOff(ctx context.Context, id fleet.ProviderID) error {
	return p.act(ctx, "turn off", id, func(devices packngo.DeviceService) (*packngo.Response, error) {
		return devices.PowerOff(string(id))
	}, "inactive", "powering_off")
}

// PowerCycle turns a device off, waits until it is off, and asks that it be turned on. The API has
// no such action of its own. A device that is off already, perhaps because an earlier call ended
// half-way, is only turned on.
func (p *Provider) PowerCycle(ctx context.Context, id fleet.ProviderID) error {
	if err := p.PowerOff(ctx, id); err != nil {
		return err
	}
	err := p.powerOnAgain(ctx, id)
	refused := provider.NothingSent(err)
	switch fleet.KindOf(err) {
	case fleet.KindThrottled, fleet.KindUnauthenticated, fleet.KindForbidden, fleet.KindInUse, fleet.KindConflict, fleet.KindInvalid,
		fleet.KindUnsupported:
		refused = true
	}
	if refused { // which is so of the last call, and not of the cycle
		return &fleet.Error{
			Kind: fleet.KindTemporary, Message: fmt.Sprintf("device %s was turned off, and is not on again yet: %s", id, err),
			RetryAfter: fleet.RetryAfter(err),
		}
	}
	return err
}

// powerOnAgain waits until a device is off that was told to turn off, and asks that it be turned
// on. A look may lag: one refusal says that the device is not off yet, whatever a look says then.
// So it is looked at, and asked for, again, until a later look shows it on.
func (p *Provider) powerOnAgain(ctx context.Context, id fleet.ProviderID) error {
	wait := firstLook
	var refusal error
	for deadline := time.Now().Add(offPatience); ; wait = min(2*wait, longestLook) {
		device, err := p.getDevice(ctx, string(id))
		err = p.judge(ctx, string(id), err)
		late := !time.Now().Before(deadline)
		switch {
		case err != nil:
			return fmt.Errorf("the device was being turned off: %w", err)
		case refusal != nil && (device.State == "active" || device.State == "powering_on"):
			return nil
		case refusal != nil && late:
			return fmt.Errorf("%w; it is %s", refusal, printable(device.State))
		case device.State == "inactive":
			refusal = p.ask(ctx, "turn on", id, func(devices packngo.DeviceService) (*packngo.Response, error) {
				return devices.PowerOn(string(id))
			})
			if fleet.KindOf(refusal) != fleet.KindConflict {
				return refusal
			}
		case device.State != "active" && device.State != "powering_off":
			return fleet.Errorf(fleet.KindConflict, "device %s was being turned off, and is %s now", id, printable(device.State))
		case late:
			return fleet.Errorf(fleet.KindTimeout, "device %s is not off %s after it was told to turn off: it is %s", id, offPatience, device.State)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait until device %s is off: %w", id, fleet.ContextError(ctx))
		}
	}
}

// Reinstall asks that the configured operating system be installed anew. It succeeds when the
// device is being reinstalled already. The API keeps nothing of the disks.
func (p *Provider) Reinstall(ctx context.Context, id fleet.ProviderID) error {
	return p.act(ctx, "reinstall", id, func(devices packngo.DeviceService) (*packngo.Response, error) {
		return devices.Reinstall(string(id), &packngo.DeviceReinstallFields{OperatingSystem: p.config.OperatingSystem})
	}, "reinstalling")
}

// act asks for an action on a device. The API refuses an action when the device is already what the
// action would make of it. So after a refusal for its state, act asks for the state; one of done is
// success. After a refusal that may mean that the device is gone, it asks whether it is.
func (p *Provider) act(
	ctx context.Context, verb string, id fleet.ProviderID,
	call func(packngo.DeviceService) (*packngo.Response, error), done ...string,
) error {
	err := p.ask(ctx, verb, id, call)
	forbidden := fleet.KindOf(err) == fleet.KindForbidden
	if !forbidden && (fleet.KindOf(err) != fleet.KindConflict || len(done) == 0) {
		return err
	}
	device, unknown := p.getDevice(ctx, string(id))
	unknown = p.judge(ctx, string(id), unknown)
	switch {
	case fleet.KindOf(unknown) == fleet.KindNotFound:
		return unknown
	case unknown != nil || forbidden:
		return err // it says more than the other does
	case slices.Contains(done, device.State):
		return nil
	}
	return fmt.Errorf("%w; it is %s", err, printable(device.State))
}

// ask makes one call about a device.
func (p *Provider) ask(
	ctx context.Context, verb string, id fleet.ProviderID, call func(packngo.DeviceService) (*packngo.Response, error),
) error {
	if err := checkID("device", string(id)); err != nil {
		return err
	}
	what := verb + " device " + string(id)
	client, err := p.client(ctx, what)
	if err != nil {
		return err
	}
	response, err := call(client.Devices)
	err = classify(what, response, err)
	if doubt := p.believed(provider.WithBeforeSend(ctx, func(context.Context) error { return nil }), err); fleet.KindOf(doubt) != fleet.KindOf(err) {
		// Without the cause: that nothing of the question was sent says nothing of the call.
		return &fleet.Error{Kind: fleet.KindOf(doubt), Message: doubt.Error(), RetryAfter: fleet.RetryAfter(doubt)}
	}
	return stateError(err)
}

// Release deletes a device. One that is gone already, or is being deleted, was released: the API
// refuses a DELETE that the transport has repeated because the first reply was lost. So after a
// refusal, Release asks what became of the device.
func (p *Provider) Release(ctx context.Context, id fleet.ProviderID) error {
	err := p.ask(ctx, "delete", id, func(devices packngo.DeviceService) (*packngo.Response, error) {
		return devices.Delete(string(id), true)
	})
	switch fleet.KindOf(err) {
	case fleet.KindNotFound:
		return nil
	case fleet.KindForbidden, fleet.KindConflict:
		return p.notDeleted(ctx, string(id), err)
	}
	return err
}

// leaving reports whether a device is being deleted, or is shown a little longer than it was there.
func leaving(device *packngo.Device) bool {
	return device.State == "deprovisioning" || device.State == "deleted"
}

// notDeleted returns what the refusal to delete a device means. Where nothing tells whether the
// project still has the device, the failure is one that may pass: the next look may tell.
func (p *Provider) notDeleted(ctx context.Context, id string, refusal error) error {
	device, err := p.getDevice(ctx, id)
	err = p.judge(ctx, id, err)
	switch {
	case provider.WasMoved(err):
		return err
	case fleet.KindOf(err) == fleet.KindNotFound:
		return nil
	case err == nil && leaving(device):
		return nil
	case err == nil:
		return fmt.Errorf("%w; it is %s", refusal, printable(device.State))
	case p.absent.has(id, provider.AskedSince(ctx)):
		return refusal
	}
	return &fleet.Error{
		Kind: fleet.KindTemporary, Message: "whether the device is gone cannot be told yet", RetryAfter: fleet.RetryAfter(err), Err: refusal,
	}
}
