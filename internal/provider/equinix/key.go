package equinix

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/packethost/packngo"

	"github.com/ironherd/ironherd/internal/fleet"
)

// keyMemo remembers the ID of our key, so that a create need not ask for it. What counts is what
// the project has.
type keyMemo struct {
	// turn has room for the one caller that looks for the key or creates it.
	turn chan struct{}

	mu sync.Mutex
	id string
}

func (m *keyMemo) get() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.id
}

func (m *keyMemo) set(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.id = id
}

func (m *keyMemo) forget() { m.set("") }

// ensureKey makes sure that the project has our public key under the configured label, and returns
// its ID. It is a conflict when the label has another key, or the key another label.
func (p *Provider) ensureKey(ctx context.Context) (string, error) {
	if id := p.key.get(); id != "" {
		return id, nil
	}
	if len(strings.Fields(p.config.SSHPublicKey)) < 2 {
		return "", fleet.Errorf(fleet.KindInvalid, "provider equinix was given no SSH public key: without one its devices could not be reached")
	}
	select {
	case p.key.turn <- struct{}{}:
		defer func() { <-p.key.turn }()
	case <-ctx.Done():
		return "", fleet.Errorf(fleet.KindTimeout, "wait for the SSH key: %w", context.Cause(ctx))
	}
	if id := p.key.get(); id != "" {
		return id, nil
	}
	id, err := p.findKey(ctx)
	if err != nil {
		return "", err
	}
	if id == "" {
		if id, err = p.createKey(ctx); err != nil {
			return "", err
		}
	}
	p.key.set(id)
	return id, nil
}

// findKey returns the ID of our key; empty when the project does not have it.
func (p *Provider) findKey(ctx context.Context) (string, error) {
	what := "list SSH keys of project " + p.config.Project
	client, err := p.client(ctx, what)
	if err != nil {
		return "", err
	}
	keys, response, err := client.SSHKeys.ProjectList(p.config.Project)
	if err := classify(what, response, err); err != nil {
		return "", err
	}
	var fault error
	for _, key := range keys {
		switch same, label := sameKey(key.Key, p.config.SSHPublicKey), key.Label == p.config.SSHKeyLabel; {
		case same && label:
			return key.ID, nil
		case label:
			fault = fleet.Errorf(fleet.KindConflict,
				"project %s has another SSH key under the label %q: set ssh_key_label to a label of its own, or remove that key",
				p.config.Project, key.Label)
		case same && fault == nil:
			fault = fleet.Errorf(fleet.KindConflict,
				"project %s has our SSH key under the label %q: set ssh_key_label to that, or use another key", p.config.Project, key.Label)
		}
	}
	return "", fault
}

// createKey registers our key. After a refusal or a lost reply it looks again, because the key may
// be there by now: another control plane may have been faster.
func (p *Provider) createKey(ctx context.Context) (string, error) {
	what := "create SSH key " + p.config.SSHKeyLabel
	client, err := p.client(ctx, what)
	if err != nil {
		return "", err
	}
	created, response, err := client.SSHKeys.Create(&packngo.SSHKeyCreateRequest{
		Label: p.config.SSHKeyLabel, Key: p.config.SSHPublicKey, ProjectID: p.config.Project,
	})
	if err = classify(what, response, err); err == nil {
		p.logger.InfoContext(ctx, "registered SSH key with the provider", slog.String("label", p.config.SSHKeyLabel))
		return created.ID, checkID("SSH key", created.ID)
	}
	switch fleet.KindOf(err) {
	case fleet.KindInvalid, fleet.KindConflict, fleet.KindTemporary, fleet.KindTimeout:
	default:
		return "", err
	}
	if ctx.Err() != nil {
		return "", err
	}
	if id, again := p.findKey(ctx); again == nil && id != "" {
		return id, nil
	}
	return "", err
}

// sameKey compares kind and value, and leaves the comment aside.
func sameKey(a, b string) bool {
	left, right := strings.Fields(a), strings.Fields(b)
	return len(left) >= 2 && len(right) >= 2 && left[0] == right[0] && left[1] == right[1]
}
