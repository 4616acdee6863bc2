// Package token keeps the tokens with which callers over TCP prove to the operator API who they
// are. A token has a name, which history records, a role and an expiry.
//
// The tokens are in a file, so that they count while the database does not answer, and can be made
// before the control plane runs for the first time. The file has no token, but its SHA-256: a token
// is 256 random bits, so the hash gives nothing away and needs no salt. Whoever makes a token sees
// it once.
//
// What it promises:
//
//   - The file is complete and closed to others at every moment; two who change it at the same time
//     both succeed.
//   - No change makes a file that is too large to be read. Tokens that expired long ago make room.
//   - A change counts at the next call. A file that cannot be read, is open to others or has a
//     fault lets nobody in. One in which nothing is written is a file without tokens.
//   - No error and no log has a token or a hash.
package token

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Token is what is kept of a token.
type Token struct {
	Name    string    `yaml:"name"`
	Role    Role      `yaml:"role"`
	Created time.Time `yaml:"created"`
	Expires time.Time `yaml:"expires"`
	// Hash is the SHA-256 of the token, in hexadecimal digits.
	Hash string `yaml:"sha256"`
}

// Expired reports whether the token does not count any more.
func (t Token) Expired(now time.Time) bool { return !now.Before(t.Expires) }

// ExpiresSoon reports whether the token expires soon, or has expired.
func (t Token) ExpiresSoon(now time.Time) bool {
	return secret.ExpiresSoon(t.Created, t.Expires, now)
}

const (
	// mark starts every token, so that people and scanners of secrets know one when they see it.
	mark = "ironherd_"
	// randomBytes of a token: nobody guesses so many.
	randomBytes = 32
	// MaxLife is how long a token may count.
	MaxLife = 10 * 365 * 24 * time.Hour
	// maxFile bounds the file, in bytes.
	maxFile = 1 << 20
	// keepExpired is for how long the file has a token that has expired, even where there is no room
	// left: people look there for why a caller is refused.
	keepExpired = 30 * 24 * time.Hour
)

var name = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// header is the comment of the file.
const header = "# Who may call the operator API: made and changed by `ironherd token`.\n"

type content struct {
	Tokens []Token `yaml:"tokens"`
}

// damaged marks what is wrong with the content of a file.
type damaged struct{ error }

// Unwrap returns what is wrong.
func (d damaged) Unwrap() error { return d.error }

// Damaged reports whether an error of Read is one of the file's content: the file was read, nobody
// else may have read it, and nobody gets in by it.
func Damaged(err error) bool {
	_, ok := errors.AsType[damaged](err)
	return ok
}

// Read returns the tokens of a file, also those that have expired; none when it is not there, or
// when nothing is written in it. An error is of kind Invalid.
func Read(path string) ([]Token, error) {
	data, err := secret.Read(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := decode(path, data)
	if err != nil {
		return nil, damaged{err}
	}
	return all, nil
}

func decode(path string, data []byte) ([]Token, error) {
	var c content
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	switch err := decoder.Decode(&c); {
	case errors.Is(err, io.EOF):
		return nil, nil
	case err != nil:
		return nil, notTokens(path)
	}
	var other yaml.Node
	switch err := decoder.Decode(&other); {
	case err == nil:
		return nil, fleet.Errorf(fleet.KindInvalid,
			"%s:%d: another YAML document begins here, of which no token would count: move its tokens into the first one, and remove the line ---",
			path, other.Line)
	case !errors.Is(err, io.EOF):
		return nil, notTokens(path)
	}
	seen := map[string]bool{}
	for i, t := range c.Tokens {
		if problem := t.problem(); problem != "" {
			return nil, fleet.Errorf(fleet.KindInvalid, "%s: token %d %s", path, i+1, problem)
		}
		if seen[t.Name] {
			return nil, fleet.Errorf(fleet.KindInvalid, "%s: two tokens are named %s", path, t.Name)
		}
		seen[t.Name] = true
	}
	return c.Tokens, nil
}

func notTokens(path string) error {
	return fleet.Errorf(fleet.KindInvalid, "%s is not a file of tokens: put it back from a copy, "+
		"or move it away and make tokens anew with `ironherd token create NAME --role ROLE`", path)
}

// problem says what is wrong with a token of a file; "" when nothing is.
func (t Token) problem() string {
	_, roleErr := ParseRole(string(t.Role))
	hash, hashErr := hex.DecodeString(t.Hash)
	switch {
	case !name.MatchString(t.Name):
		return "must have a name of lower-case letters, digits, dots, hyphens and underscores"
	case roleErr != nil:
		return "has no role: " + roleErr.Error()
	case t.Expires.IsZero():
		return "has no expiry: set expires to an instant such as 2030-01-31T00:00:00Z"
	case hashErr != nil || len(hash) != sha256.Size:
		return "must have the SHA-256 of the token, as 64 hexadecimal digits"
	}
	return ""
}

// Create makes a token that counts for that long, adds it to the file and returns its text, which
// is not kept anywhere. KindInvalid for a bad name, role or life, KindConflict when a token of that
// name counts; one that has expired is replaced.
func Create(path, called string, role Role, life time.Duration) (text string, made Token, err error) {
	if !name.MatchString(called) {
		return "", Token{}, fleet.Errorf(fleet.KindInvalid,
			"%.80q cannot be the name of a token: use at most 63 lower-case letters, digits, dots, hyphens and underscores", called)
	}
	if _, err := ParseRole(string(role)); err != nil {
		return "", Token{}, err
	}
	if life <= 0 || life > MaxLife {
		return "", Token{}, fleet.Errorf(fleet.KindInvalid, "a token can count for a day to ten years, not for %s", life)
	}
	random := make([]byte, randomBytes)
	_, _ = rand.Read(random) // never fails
	text = mark + base64.RawURLEncoding.EncodeToString(random)
	now := time.Now().UTC().Truncate(time.Second)
	made = Token{Name: called, Role: role, Created: now, Expires: now.Add(life), Hash: hashOf(text)}
	err = change(path, func(all []Token) ([]Token, error) {
		at := slices.IndexFunc(all, func(t Token) bool { return t.Name == called })
		if at >= 0 && !all[at].Expired(now) {
			return nil, fleet.Errorf(fleet.KindConflict, "there is a token %s already: revoke it first, or use another name", called)
		}
		if at >= 0 {
			all = slices.Delete(all, at, at+1)
		}
		return append(all, made), nil
	})
	if err != nil {
		return "", Token{}, err
	}
	return text, made, nil
}

// Revoke takes a token out of the file: KindNotFound when none has the name.
func Revoke(path, called string) error {
	return change(path, func(all []Token) ([]Token, error) {
		left := slices.DeleteFunc(all, func(t Token) bool { return t.Name == called })
		if len(left) == len(all) {
			return nil, fleet.Errorf(fleet.KindNotFound, "no token is named %.80q", called)
		}
		return left, nil
	})
}

// change replaces the file's tokens, where the path leads to. Whoever changes them at the same time
// waits. Where the file would be too large, tokens that expired long ago go, and KindConflict is
// returned when that is not enough. They stay otherwise: the clock of this host may be wrong.
func change(path string, edit func([]Token) ([]Token, error)) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil { // for whoever may read the file
		return fmt.Errorf("make directory: %w", err)
	}
	if path, err = secret.Follow(path); err != nil {
		return err
	}
	unlock, err := secret.Lock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	all, err := Read(path)
	if err != nil {
		return err
	}
	if all, err = edit(all); err != nil {
		return err
	}
	text, err := encode(all)
	if err == nil && len(text) > maxFile {
		longAgo := time.Now().Add(-keepExpired)
		text, err = encode(slices.DeleteFunc(all, func(t Token) bool { return t.Expired(longAgo) }))
	}
	if err != nil {
		return err
	}
	if len(text) > maxFile {
		return fleet.Errorf(fleet.KindConflict,
			"%s has no room for this: it may have %d bytes at most; revoke tokens that nobody uses (`ironherd token list` shows them), or remove them from the file",
			path, maxFile)
	}
	return secret.Write(path, text, true)
}

func encode(all []Token) ([]byte, error) {
	text, err := yaml.Marshal(content{Tokens: all})
	return append([]byte(header), text...), err
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
