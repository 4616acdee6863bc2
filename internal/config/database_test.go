package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ironherd/ironherd/internal/config"
)

func TestDatabase(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const address = "postgres://u@db.example:5432/fleet?sslmode=verify-full"
	for name, content := range map[string]string{
		"short":   "database: " + address + "\n",
		"section": "database: {url: '" + address + "', password_file: " + secret + "}\n",
	} {
		c, err := load(t, minimal+content)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if c.Database.URL != address || c.Database.String() != "postgres://u@db.example:5432/fleet" || c.Database.Isolation != config.ReadCommitted || !c.Database.Notify {
			t.Errorf("%s: %+v", name, c.Database)
		}
		if password, err := c.Database.ReadPassword(); err != nil || (password == "hunter2") != (name == "section") {
			t.Errorf("%s: password %q, %v", name, password, err)
		}
	}
	c, err := load(t, minimal+"database: sqlite:here.db\n")
	if err != nil || !strings.HasSuffix(c.Database.Path, "/here.db") || c.Database.URL != "" {
		t.Errorf("sqlite: %+v, %v", c.Database, err)
	}
	c, err = load(t, minimal+"database: sqlite:here.db\n", "IRONHERD_DATABASE_PATH="+secret)
	if err != nil || c.Database.Path != secret {
		t.Errorf("from the environment: %+v, %v", c.Database, err)
	}
}

// TestDatabaseIsNamedWithoutParameters: one of them may be a secret.
func TestDatabaseIsNamedWithoutParameters(t *testing.T) {
	t.Parallel()
	d := config.Database{URL: "postgres://u:hunter2@db/fleet?sslkey=k.pem&sslpassword=hunter2"}
	if got := d.String(); got != "postgres://u:xxxxx@db/fleet" {
		t.Error(got)
	}
}

func TestDatabaseFaults(t *testing.T) {
	t.Parallel()
	pair, passwords := filepath.Join(t.TempDir(), "pair"), filepath.Join(t.TempDir(), "pgpass")
	for path, content := range map[string][]byte{pair: keyPair(t), passwords: []byte("*:*:*:*:hunter2\n")} {
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for content, want := range map[string]string{
		"database: mysql://x":                                 `ironherd.yaml:4: database: a section with path, url, password_file, isolation, connections and notify is expected, not a single value`,
		"database: postgres://u:hunter2@db/fleet":             "ironherd.yaml:4: database.url: must not hold a password: put it into a file and name that as database.password_file, or use PGPASSWORD or ~/.pgpass",
		"database: {url: 'postgres://u@db/fleet?password=x'}": "ironherd.yaml:4: database.url: must not hold a password",
		"database: {url: 'postgres://u@db/fleet?sslmode=verify-full&sslkey=k.pem&sslpassword=hunter2'}": "ironherd.yaml:4: database.url: must not hold the password of a key (sslpassword): use PGSSLPASSWORD",
		"database: {url: 'mysql://u:hunter2@db'}":                                                       "ironherd.yaml:4: database.url: is not a URL such as postgres://",
		"database: {url: 'postgres://db/x', path: a}":                                                   "ironherd.yaml:4: database.path: is for SQLite",
		"database: {password_file: /dev/null}":                                                          "ironherd.yaml:4: database.password_file: is for PostgreSQL",
		"database: {url: postgres://db, password_file: /no/pw}":                                         "ironherd.yaml:4: database.password_file: the file /no/pw cannot be read: no such file or directory",
		"database: {url: postgres://db, isolation: eventual}":                                           `ironherd.yaml:4: database.isolation: must be read-committed or serializable, not "eventual"`,
		"database: {url: postgres://db, connections: 1}":                                                "ironherd.yaml:4: database.connections: must be at least 2, not 1",
		"database: {url: postgres://db, password_file: /dev/null}":                                      "ironherd.yaml:4: database.password_file: /dev/null is empty",
		"database: {url: 'postgres://db/x?sslmode=verify-full&sslrootcert=/no/ca'}":                     "ironherd.yaml:4: database.url: of the database's address, the file /no/ca cannot be read: no such file or directory",
		"database: {url: 'postgres://db/x?sslcert=/no/c&sslkey=/dev/null'}":                             "ironherd.yaml:4: database.url: the database's address cannot be understood: failed to decode sslkey (its files are /no/c, /dev/null",
		"database: {url: 'postgres://db/x?sslcert=" + pair + "&sslkey=" + pair + "'}":                   "ironherd.yaml:4: database.url: of the database's address, " + pair + " is open to others (mode 0644): replace the secret",
		"database: {url: 'postgres://db/x?passfile=" + passwords + "'}":                                 "ironherd.yaml:4: database.url: of the database's address, " + passwords + " is open to others (mode 0644): replace the secret",
		"database: {url: 'postgres://db/x?sslmode=certainly'}":                                          "ironherd.yaml:4: database.url: the database's address cannot be understood: sslmode is invalid",
		"database: {url: 'postgres://a,b:1,c:2/x?port=1,2'}":                                            "ironherd.yaml:4: database.url: the database's address cannot be understood: its hosts and ports, or one of its parameters, are not what",
	} {
		got := faults(t, minimal+content+"\n")
		if len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s\n%s", content, cmp.Diff([]string{want}, got))
		}
		if strings.Contains(strings.Join(got, "\n"), "hunter2") {
			t.Errorf("%s: the password is shown: %v", content, got)
		}
	}
}

// keyPair returns a certificate and its private key.
func keyPair(t *testing.T) []byte {
	t.Helper()
	return keyPairUntil(t, time.Now().Add(time.Hour))
}

func keyPairUntil(t *testing.T, end time.Time) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: end.AddDate(-1, 0, 0), NotAfter: end}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})...)
}

// TestFilesOfPasswordsThatAreNotUsed: nobody reads the file of passwords where there is another
// password, or no file.
func TestFilesOfPasswordsThatAreNotUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"password": 0o600, "pgpass": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("*:*:*:*:hunter2\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, content := range []string{
		"database: {url: 'postgres://db/x?passfile=" + dir + "/pgpass', password_file: " + dir + "/password}\n",
		"database: {url: 'postgres://db/x?passfile=" + dir + "/nowhere'}\n",
	} {
		if _, err := load(t, minimal+content); err != nil {
			t.Errorf("%s%v", content, err)
		}
	}
}

// TestServersThatNobodyVerifies: they are told of, unless they are on this host.
func TestServersThatNobodyVerifies(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, keyPair(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for address, host := range map[string]string{
		"postgres://db.example/x":                                        "db.example",
		"postgres://db.example/x?sslmode=disable":                        "db.example",
		"postgres://db.example/x?sslmode=require":                        "db.example",
		"postgres://127.0.0.1,db.example/x?sslmode=allow":                "db.example",
		"postgres://[2001:db8::1]/x":                                     "2001:db8::1",
		"postgres://db.example/x?sslmode=verify-full":                    "",
		"postgres://db.example/x?sslmode=verify-ca&sslrootcert=" + ca:    "",
		"postgres://db.example/x?sslmode=require&sslrootcert=" + ca:      "", // the same as verify-ca
		"postgres://db.example/x?sslrootcert=" + ca:                      "db.example",
		"postgres://localhost,127.0.0.1/x":                               "",
		"postgres://[::1]/x":                                             "",
		"postgres:///x?host=/run/postgresql":                             "",
		"postgres://db.example/x?sslmode=verify-full&sslrootcert=system": "",
	} {
		c, err := load(t, minimal+"database: "+address+"\n")
		if err != nil {
			t.Errorf("%s: %v", address, err)
			continue
		}
		got := c.Database.Caveat()
		if (host == "") != (got == "") || !strings.Contains(got, host) {
			t.Errorf("%s: %q, want one of %q", address, got, host)
		}
		if all := c.Caveats(); (host == "") != (len(all) == 0) {
			t.Errorf("%s: caveats %q", address, all)
		}
	}
}

// TestAuthoritiesOfInstalledSystemsThatEnd: a check tells of one that has ended or ends soon, and a
// start goes on with it.
func TestAuthoritiesOfInstalledSystemsThatEnd(t *testing.T) {
	t.Parallel()
	for end, told := range map[time.Duration]int{-time.Hour: 1, 13 * 24 * time.Hour: 1, 40 * 24 * time.Hour: 0} {
		ca := filepath.Join(t.TempDir(), "ca.pem")
		_, certificate, _ := strings.Cut(string(keyPairUntil(t, time.Now().Add(end))), "-----END PRIVATE KEY-----\n")
		if err := os.WriteFile(ca, []byte(certificate), 0o600); err != nil {
			t.Fatal(err)
		}
		hosts := filepath.Join(filepath.Dir(ca), "hosts.yaml")
		if err := os.WriteFile(hosts, []byte("hosts: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := load(t, minimal+"providers:\n- {name: rack, kind: static, static: {path: "+hosts+"}, install: {url: 'http://i.example/os', digest: 'sha256:"+
			strings.Repeat("ab", 32)+"', seen_up: 'https://web.example/', seen_up_ca_file: "+ca+"}}\n")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Caveats(); len(got) != told || told > 0 && !strings.Contains(got[0], "a certificate of seen_up_ca_file () ends at ") {
			t.Errorf("of one that ends in %s: %q", end, got)
		}
	}
}
