package server

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/secret"
)

// End is when clients cease to accept a certificate.
type End struct {
	At time.Time
	// Of names the certificate that ends then, which the one in use leads to; "": it is that itself.
	Of string

	from time.Time
}

func endOf(certificate *x509.Certificate, of string) End {
	return End{At: certificate.NotAfter, Of: of, from: certificate.NotBefore}
}

func (e End) soon(now time.Time) bool { return secret.ExpiresSoon(e.from, e.At, now) }

// Ends returns when clients cease to accept the certificate in use, as far as it is known at that
// time: they do when the first one ends of those that it leads to. What ends soon comes before what
// ends first. A certificate of a day, which is renewed each day, would hide all others.
func (c *Certificates) Ends(now time.Time) End {
	pair, _ := c.get(nil)
	var ends []End
	given := [][]byte{c.authority}
	if c.given != nil {
		given = append(given, c.given)
	}
	for _, authority := range given {
		all := issuers(pair, authority, now)
		for i, issuer := range all {
			what := "intermediate"
			if i == len(all)-1 {
				what = "authority"
			}
			ends = append(ends, endOf(issuer, fmt.Sprintf("the %s %q", what, issuer.Subject)))
		}
	}
	// It is the last, because a new one is of no use where it ends with its authority.
	ends = append(ends, endOf(pair.Leaf, ""))
	return slices.MinFunc(ends, func(a, b End) int {
		switch {
		case a.soon(now) && !b.soon(now):
			return -1
		case b.soon(now) && !a.soon(now):
			return 1
		}
		return a.At.Compare(b.At)
	})
}

// issuers returns what the certificate leads to at that time, the authority last, for clients that
// verify by the certificates of authority, PEM; empty: the public roots of this host. They take any
// chain, so it is the one whose first end is the latest. Where they accept it no more, it is the
// chain by which they did last. Nil: they never did, as far as is known here.
func issuers(pair *tls.Certificate, authority []byte, now time.Time) []*x509.Certificate {
	at := []time.Time{now}
	past := func(der []byte) {
		if certificate, err := x509.ParseCertificate(der); err == nil && certificate.NotAfter.Before(now) {
			at = append(at, certificate.NotAfter)
		}
	}
	for _, der := range pair.Certificate {
		past(der)
	}
	for block, rest := pem.Decode(authority); block != nil; block, rest = pem.Decode(rest) {
		past(block.Bytes)
	}
	slices.SortFunc(at, func(a, b time.Time) int { return b.Compare(a) })
	for _, t := range at {
		found, err := chains(pair, authority, t)
		if err != nil {
			continue
		}
		// The certificate itself is the first of each chain.
		return slices.MaxFunc(found, func(a, b []*x509.Certificate) int { return firstEnd(a[1:]).Compare(firstEnd(b[1:])) })[1:]
	}
	return nil
}

// firstEnd is the earliest end of the certificates.
func firstEnd(certificates []*x509.Certificate) time.Time {
	first := endless
	for _, c := range certificates {
		if c.NotAfter.Before(first) {
			first = c.NotAfter
		}
	}
	return first
}
