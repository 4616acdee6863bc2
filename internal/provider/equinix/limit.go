package equinix

import (
	"net/url"
	"sync"

	"github.com/ironherd/ironherd/internal/provider"
)

// limitMemo knows what limit calls count against. The token may change, and the name of a limit
// takes time to make.
type limitMemo struct {
	host string

	mu           sync.Mutex
	token, named string
	is           string // the name of the limit of the token named
}

// of takes in the token that calls are made with from now on.
func (m *limitMemo) of(token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.token = token
}

func (m *limitMemo) name() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.named != m.token {
		m.named, m.is = m.token, provider.LimitOf(m.host, m.token)
	}
	return m.is
}

// host is where an API is; the whole address where that cannot be read.
func host(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return base
	}
	return u.Host
}
