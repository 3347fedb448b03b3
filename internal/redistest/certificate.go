package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are files in PEM: the certificate of an authority, and a certificate
// that it signed, with its key. The latter is for 127.0.0.1 and the name redis.test,
// and for servers as well as clients.
type Certificates struct {
	CA, Cert, Key string
}

// NewCertificates makes certificates that are valid for an hour.
func NewCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	c := Certificates{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	c.Replace(t)
	return c
}

// Replace writes new certificates, of another authority, into the same files.
func (c Certificates) Replace(t testing.TB) {
	t.Helper()
	authority, authorityKey := template(1, "the authority"), newKey(t)
	authority.IsCA = true
	authority.BasicConstraintsValid = true
	authority.KeyUsage = x509.KeyUsageCertSign
	leaf, leafKey := template(2, "the server"), newKey(t)
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	leaf.DNSNames = []string{"redis.test"}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}

	for path, subject := range map[string]*x509.Certificate{c.CA: authority, c.Cert: leaf} {
		key := leafKey
		if subject.IsCA {
			key = authorityKey
		}
		der, err := x509.CreateCertificate(rand.Reader, subject, authority, key.Public(), authorityKey)
		if err != nil {
			t.Fatal(err)
		}
		writePEM(t, path, "CERTIFICATE", der)
	}
	der, err := x509.MarshalPKCS8PrivateKey(leafKey)
	if err != nil {
		t.Fatal(err)
	}
	writePEM(t, c.Key, "PRIVATE KEY", der)
}

func template(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// StartTLS starts a server whose port accepts TLS only, and only clients that have a
// certificate of the same authority.
func StartTLS(t testing.TB, c Certificates) *Server {
	t.Helper()
	return start(t, func(s *Server) []string {
		return append(s.commonArgs(), "--port", "0", "--tls-port", s.Port(),
			"--tls-ca-cert-file", c.CA, "--tls-cert-file", c.Cert, "--tls-key-file", c.Key,
			"--tls-auth-clients", "yes")
	})
}
