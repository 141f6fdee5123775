package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"strings"
)

// Security is how a client connects: the fields of Login (tests/support/security_profiles.py); empty at a plaintext listener.
type Security struct {
	Protocol    string `json:"protocol"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	CA          string `json:"ca"`
	Certificate string `json:"certificate"`
}

// tls is nil without TLS.
func (s Security) tls() *tls.Config {
	if !strings.HasSuffix(s.Protocol, "SSL") {
		return nil
	}
	pem, err := os.ReadFile(s.CA)
	if err != nil {
		panic(err)
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(pem)
	if s.Certificate != "" {
		pair, err := tls.LoadX509KeyPair(s.Certificate, s.Certificate)
		if err != nil {
			panic(err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}

func isCertificateError(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}
