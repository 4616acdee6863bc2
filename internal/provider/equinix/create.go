package equinix

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// Create turns a reservation into a device. Everything before the one call that creates may be
// repeated. When that call fails, provider.MayHaveCreated tells whether its outcome is open. It is
// made once more when it was refused for certain and named a key that is not there any more: the
// reservation is not to blame for that.
func (p *Provider) Create(ctx context.Context, request provider.CreateRequest) (provider.Entry, error) {
	if err := checkCreate(request); err != nil {
		return provider.Entry{}, err
	}
	remembered := p.key.get() != ""
	key, err := p.ensureKey(ctx)
	if err != nil {
		return provider.Entry{}, err
	}
	found, device, err := p.occupant(ctx, request.Capacity)
	if err != nil {
		return provider.Entry{}, ofReservation(err)
	}
	if device != nil {
		return p.ownOrLost(request, device)
	}
	if !found.free() {
		return provider.Entry{}, provider.OfCapacity(
			fleet.Errorf(fleet.KindConflict, "reservation %s is not provisionable now", request.Capacity))
	}
	created, err := p.post(ctx, request, found, key)
	if kind := fleet.KindOf(err); err != nil && (kind == fleet.KindInvalid || kind == fleet.KindNotFound) {
		p.key.forget() // perhaps the key is not there any more
		if remembered {
			created, err = p.postAgain(ctx, request, found, key, err)
		}
	}
	if err == nil {
		return created, nil
	}
	if fleet.KindOf(err) == fleet.KindInvalid {
		return p.explainRefusal(ctx, request, err)
	}
	return provider.Entry{}, err
}

func checkCreate(request provider.CreateRequest) error {
	if err := checkID("reservation", string(request.Capacity)); err != nil {
		return provider.OfCapacity(err)
	}
	if request.Token == "" || request.Machine == "" {
		return fleet.Errorf(fleet.KindInvalid, "a device is created with a token and a machine ID")
	}
	return nil
}

// ofReservation marks the error of a question about one reservation as one about that reservation,
// unless the question about any other would fail in the same way: by the token, by the limit of
// requests, or by a proxy that refuses.
func ofReservation(err error) error {
	switch fleet.KindOf(err) {
	case fleet.KindUnauthenticated, fleet.KindThrottled:
		return err
	case fleet.KindInvalid, fleet.KindUnsupported:
		if answer, ok := errors.AsType[*answerError](err); !ok || !answer.fromAPI {
			return err
		}
	}
	return provider.OfCapacity(err)
}

// ownOrLost returns the device that occupies a reservation when it is ours, and RaceLost otherwise.
// One that leaves is Conflict: the reservation is free in a moment, and nobody has taken it.
func (p *Provider) ownOrLost(request provider.CreateRequest, device *packngo.Device) (provider.Entry, error) {
	if slices.Contains(device.Tags, string(request.Token)) {
		return p.deviceEntry(device), nil
	}
	if leaving(device) {
		return provider.Entry{}, provider.OfCapacity(fleet.Errorf(fleet.KindConflict, "reservation %s is still held by device %s, which is %s",
			request.Capacity, device.ID, device.State))
	}
	return provider.Entry{}, fleet.Errorf(fleet.KindRaceLost, "reservation %s is occupied by device %s, which is not ours",
		request.Capacity, device.ID)
}

// post makes the one call that creates.
func (p *Provider) post(
	ctx context.Context, request provider.CreateRequest, found *reservation, key string,
) (provider.Entry, error) {
	what := "create device on reservation " + string(request.Capacity)
	if request.BeforeCall != nil {
		ctx = provider.WithBeforeSend(ctx, request.BeforeCall)
	}
	client, err := p.client(ctx, what)
	if err != nil {
		return provider.Entry{}, provider.BeforeSending(err)
	}
	device, response, err := client.Devices.Create(&packngo.DeviceCreateRequest{
		ProjectID:             p.config.Project,
		HardwareReservationID: string(request.Capacity),
		Hostname:              p.hostname(request.Machine),
		Plan:                  found.Plan.Slug,
		OS:                    p.config.OperatingSystem,
		Tags:                  []string{string(request.Token), managedTag},
		ProjectSSHKeys:        []string{key},
		UserData:              p.userData(request.HostKey),
	})
	if err := capacityError(classify(what, response, err)); err != nil {
		return provider.Entry{}, err
	}
	if checkID("device", device.ID) != nil {
		return provider.Entry{}, fleet.Errorf(fleet.KindUnknown, "%s: it was accepted, but the answer names no device", what)
	}
	if !slices.Contains(device.Tags, string(request.Token)) {
		return provider.Entry{}, fleet.Errorf(fleet.KindUnknown, "%s: the answer is about device %s, which does not carry the token",
			what, device.ID)
	}
	device.HardwareReservation = &packngo.HardwareReservation{ID: string(request.Capacity)}
	return p.deviceEntry(device), nil
}

// postAgain makes the call that was refused once more, where the project has our key under another
// ID than the call named. Where that cannot be told, or nothing of the second call was sent, the
// refusal stands. Its kind is then one that is not about the reservation.
func (p *Provider) postAgain(
	ctx context.Context, request provider.CreateRequest, found *reservation, key string, refusal error,
) (provider.Entry, error) {
	now, failure := p.ensureKey(ctx)
	if failure == nil {
		if now == key {
			return provider.Entry{}, refusal
		}
		var created provider.Entry
		if created, failure = p.post(ctx, request, found, now); !provider.NothingSent(failure) {
			return created, failure
		}
	}
	// The cause is not wrapped: its marks do not hold for the call that was refused.
	return provider.Entry{}, fleet.Errorf(fleet.KindForbidden, "%w; it was not sent again with another SSH key: %v", refusal, failure)
}

// hostname is the prefix and the end of the machine's ID. It is not the beginning, because IDs of
// one hour begin alike.
func (p *Provider) hostname(machine fleet.MachineID) string {
	short := strings.ReplaceAll(string(machine), "-", "")
	return p.config.DevicePrefix + short[max(0, len(short)-8):]
}

// explainRefusal asks why a create was refused, because the API has one status for an invalid
// request and for a reservation that is not free any more. This call has created nothing in either
// case. An earlier one may have reached the API late; then explainRefusal returns its device.
func (p *Provider) explainRefusal(ctx context.Context, request provider.CreateRequest, refusal error) (provider.Entry, error) {
	found, device, err := p.occupant(ctx, request.Capacity)
	switch {
	case fleet.KindOf(err) == fleet.KindConflict:
		return provider.Entry{}, &fleet.Error{Kind: fleet.KindConflict, Err: refusal}
	case err != nil:
		return provider.Entry{}, refusal // it says more than err does
	case device != nil:
		entry, err := p.ownOrLost(request, device)
		if err != nil {
			return provider.Entry{}, fleet.Errorf(fleet.KindOf(err), "%w: %w", err, refusal)
		}
		return entry, nil
	case !found.free():
		return provider.Entry{}, &fleet.Error{Kind: fleet.KindConflict, Err: refusal}
	}
	return provider.Entry{}, refusal
}

// capacityError recognises the answer "nothing is free". The API has no code for it: its status is
// 503, as in an outage. So this is the one place that looks at a text of the API.
func capacityError(err error) error {
	var answer *answerError
	if !errors.As(err, &answer) || answer.status != http.StatusServiceUnavailable {
		return err
	}
	text := strings.ToLower(answer.text)
	for _, phrase := range []string{"no available hardware reservations", "no available servers", "not enough capacity", "aren't available servers"} {
		if strings.Contains(text, phrase) {
			return &fleet.Error{Kind: fleet.KindNoCapacity, Err: err}
		}
	}
	return err
}
