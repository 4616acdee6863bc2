// Package static is the provider for hosts that exist already: a list of them in a file or behind a URL.
package static

import (
	"github.com/ironherd/ironherd/internal/provider"
)

// Provider is one host list. It is safe for concurrent use.
type Provider struct{ config Config }

// New returns a provider for a valid configuration. It does not read the list.
func New(config Config, options provider.Options) (*Provider, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return &Provider{config: config}, nil
}

// Kind returns "static".
func (p *Provider) Kind() string { return "static" }
