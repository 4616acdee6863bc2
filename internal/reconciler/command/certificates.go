package command

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources"
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
