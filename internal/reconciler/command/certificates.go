package command

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/reconciler/resources"
	"github.com/ironherd/ironherd/internal/secret"
)

// certificates returns the client certificates by the files that have them: that for etcd, which
// the configuration names, and that of a kubeconfig. It leaves out what cannot be read, which
// others tell.
func (c config) certificates(kubeconfig resources.Certificate) map[string]*x509.Certificate {
	all := map[string]*x509.Certificate{}
	add := func(file string, text []byte, err error) {
		block, _ := pem.Decode(text)
		if err != nil || block == nil {
			return
		}
		if certificate, err := x509.ParseCertificate(block.Bytes); err == nil {
			all[file] = certificate
		}
	}
	if c.etcd.CertFile != "" {
		text, err := os.ReadFile(c.etcd.CertFile)
		add(c.etcd.CertFile, text, err)
	}
	text, err := kubeconfig.Read()
	add(kubeconfig.File, text, err)
	return all
}

// expired adds a fault for each certificate that has expired.
func (c config) expired(wrong *faults, now time.Time) {
	var own resources.Certificate
	if c.kubeconfig != "" {
		own, _ = resources.ClientCertificate(c.kubeconfig) // others tell what is wrong with it
	}
	for file, certificate := range c.certificates(own) {
		if now.After(certificate.NotAfter) {
			wrong.add("the client certificate %s has expired at %s: make another one", file, certificate.NotAfter.UTC().Format(time.DateTime+" UTC"))
		}
	}
}

// tellEnds logs once a day, from now on, which client certificates expire soon or have expired.
func (c config) tellEnds(ctx context.Context, kubeconfig resources.Certificate, logger *slog.Logger) error {
	day := time.NewTicker(24 * time.Hour)
	defer day.Stop()
	for {
		for file, certificate := range c.certificates(kubeconfig) {
			if secret.ExpiresSoon(certificate.NotBefore, certificate.NotAfter, time.Now()) {
				logger.WarnContext(ctx, "a client certificate expires soon, or has expired, and nobody has renewed it: without it, etcd or the API server is not reached",
					slog.String("file", file), slog.String("expires", fleet.Instant(certificate.NotAfter)))
			}
		}
		select {
		case <-day.C:
		case <-ctx.Done():
			return nil
		}
	}
}
