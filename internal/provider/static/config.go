package static

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/secret"
)

// Config says where the host list is. Exactly one of Path and URL is set.
type Config struct {
	// Path of the list on this host; either it or url must be set. The provider reads it again when it
	// has changed. A list has 100,000 hosts and 32 MiB at most, also that of a URL.
	Path string `yaml:"path"`
	// URL of the list: https, or http on this host.
	URL string `yaml:"url"`
	// Spacing is the least time from one fetch of the URL to the next. What is asked about one host is
	// answered from a list that is no older than 10 s. Where spacing is longer than that, the list may
	// be as old as three times spacing, but no host counts as gone by one that is older than spacing.
	Spacing time.Duration `yaml:"spacing"`
	// InFlight is how many fetches may be under way at once.
	InFlight int `yaml:"in_flight"`
}

// DefaultConfig returns the documented defaults. The list has none.
func DefaultConfig() Config {
	return Config{Spacing: time.Second, InFlight: 1}
}

// Validate reports every fault at once; each names its key and is of kind Invalid.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, format, args...))
	}

	path, address := strings.TrimSpace(c.Path) != "", strings.TrimSpace(c.URL) != ""
	switch {
	case !path && !address:
		fault("path or url must be set")
	case path && address:
		fault("path and url must not both be set")
	}
	if address {
		u, err := url.Parse(c.URL)
		switch {
		case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
			fault("url must be an http or https URL")
		case u.User != nil:
			fault("url must be without a user or password, which would stand in the configuration for all to read: serve the list without them")
		case u.Scheme == "http" && !secret.StaysHere(u.Hostname()):
			fault("url must be https: the addresses and host keys of the list decide which hosts are taken over, and anybody on the way could put in theirs")
		}
	}
	if c.Spacing < 0 {
		fault("spacing must not be negative, not %s", c.Spacing)
	}
	if c.InFlight < 1 {
		fault("in_flight must be at least 1, not %d", c.InFlight)
	}
	return errors.Join(faults...)
}

// Source returns what names the list, the same for each spelling of it, and the key that does: path
// or url. Both are empty where nothing is named.
func (c Config) Source() (key, source string) {
	switch {
	case strings.TrimSpace(c.Path) != "":
		if real, err := filepath.EvalSymlinks(c.Path); err == nil {
			return "path", real
		}
		return "path", filepath.Clean(c.Path)
	case strings.TrimSpace(c.URL) != "":
		u, err := url.Parse(c.URL)
		if err != nil {
			return "url", c.URL
		}
		u.Host, u.Fragment = strings.ToLower(u.Host), ""
		if port := u.Port(); port == "443" && u.Scheme == "https" || port == "80" && u.Scheme == "http" {
			u.Host = strings.TrimSuffix(u.Host, ":"+port)
		}
		if u.Path == "" {
			u.Path = "/"
		}
		return "url", u.String()
	}
	return "", ""
}

// Identity is empty: a list that moves is another file, and has the same hosts.
func (Config) Identity() string { return "" }

// Elsewhere names a host of the list that is not this one, or where the list is. Empty: all of them
// are this one, or it cannot be told.
func (c Config) Elsewhere() string {
	switch key, source := c.Source(); key {
	case "path":
		data, _, err := readFile(source)
		if err != nil {
			return ""
		}
		entries, _, _ := parse(data) // CheckList tells what is wrong with it
		for _, e := range entries {
			if e.Invalid == "" && !e.StaysHere() {
				return fmt.Sprintf("host %s at %s", e.ID, e.Address)
			}
		}
	case "url":
		if u, err := url.Parse(source); err == nil && u.Host != "" && !secret.StaysHere(u.Hostname()) {
			return "its list at " + u.Host
		}
	}
	return ""
}

// maximumListFaults bounds how many faults of one list are told.
const maximumListFaults = 20

// CheckList reports what is wrong with the list in a file: with all of it, or every fault of its
// hosts. Each is of kind Invalid, and names the line where it has one.
func CheckList(path string) error {
	data, _, err := readFile(path)
	if err != nil {
		return err
	}
	_, told, err := parse(data)
	if err != nil {
		return fleet.Errorf(fleet.KindInvalid, "%w", err)
	}
	var faults []error
	for _, fault := range told[:min(len(told), maximumListFaults)] {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "%s", fault))
	}
	if more := len(told) - maximumListFaults; more > 0 {
		faults = append(faults, fleet.Errorf(fleet.KindInvalid, "%d more faults", more))
	}
	return errors.Join(faults...)
}
