// Package equinix is the provider for the Equinix Metal API and whatever is compatible with it.
package equinix

import (
	"github.com/ironherd/ironherd/internal/provider"
)

// Provider is one project at one API. It is safe for concurrent use.
type Provider struct{ config Config }

// New returns a provider for a valid configuration. It reads the token file once, to fail early, and makes no call.
func New(config Config, options provider.Options) (*Provider, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Provider{config: config}, nil
}

// Kind returns "equinix".
func (p *Provider) Kind() string { return "equinix" }
