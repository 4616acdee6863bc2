package static

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/provider"
)

// maximumHosts bounds a list.
const maximumHosts = 100_000

// idForm is what can name a host. IDs appear in URLs, logs and commands.
var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$`)

// parse reads a list; JSON is YAML, so one reader serves both. An error is one of the whole list,
// with the line; a fault of one host is told in its entry.
func parse(data []byte) ([]provider.Entry, error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty; a list without hosts is written as hosts: []")
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); err == nil {
		return nil, errors.New("it holds more than one document")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	nodes, err := hostNodes(document.Content[0])
	if err != nil {
		return nil, err
	}
	if len(nodes) > maximumHosts {
		return nil, fmt.Errorf("it has more than %d hosts", maximumHosts)
	}
	return entriesOf(nodes), nil
}

// hostNodes returns the hosts of a list: a mapping with the one key hosts, or the bare sequence.
func hostNodes(root *yaml.Node) ([]*yaml.Node, error) {
	switch {
	case root.Kind == yaml.SequenceNode:
		return root.Content, nil
	case root.Kind != yaml.MappingNode:
		return nil, fmt.Errorf("line %d: a list of hosts is expected", root.Line)
	}
	var hosts *yaml.Node
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		switch {
		case key.Value != "hosts":
			return nil, fmt.Errorf("line %d: %.40q is not known here: the one key is hosts", key.Line, key.Value)
		case hosts != nil:
			return nil, fmt.Errorf("line %d: hosts is given twice", key.Line)
		case value.Kind != yaml.SequenceNode:
			return nil, fmt.Errorf("line %d: hosts must be a list; without hosts it is written as []", key.Line)
		}
		hosts = value
	}
	if hosts == nil {
		return nil, fmt.Errorf("line %d: the key hosts is missing", root.Line)
	}
	return hosts.Content, nil
}

// entriesOf returns one entry for each ID. Hosts that share an ID or an address are all unusable,
// because nobody can tell which of them is meant.
func entriesOf(nodes []*yaml.Node) []provider.Entry {
	entries := make([]provider.Entry, 0, len(nodes))
	lines := make([]int, 0, len(nodes))
	byID := make(map[fleet.ProviderID]int, len(nodes))
	byAddress := make(map[netip.Addr]int, len(nodes))
	for _, node := range nodes {
		entry := parseHost(node)
		if first, twice := byID[entry.ID]; twice && entry.ID != "" {
			entries[first].Invalid = fmt.Sprintf("lines %d and %d: host %q is listed twice", lines[first], node.Line, entry.ID)
			continue
		}
		if first, twice := byAddress[entry.Address]; twice && entry.Address.IsValid() {
			shared := fmt.Sprintf("lines %d and %d: hosts %q and %q have the same address %s",
				lines[first], node.Line, entries[first].ID, entry.ID, entry.Address)
			entries[first].Invalid, entry.Invalid = shared, shared
		}
		byID[entry.ID] = len(entries)
		byAddress[entry.Address] = len(entries)
		entries = append(entries, entry)
		lines = append(lines, node.Line)
	}
	return entries
}

// parseHost reads one host.
func parseHost(node *yaml.Node) provider.Entry {
	entry := provider.Entry{Availability: fleet.AvailabilityPossiblyUsed, Status: fleet.ProviderStatusActive}
	fields, err := hostFields(node)
	if id := fields["id"]; idForm.MatchString(id) {
		entry.ID, entry.Capacity = fleet.ProviderID(id), fleet.CapacityID(id)
	} else if err == nil {
		err = fmt.Errorf("id must be 1 to 128 letters, digits, dots, hyphens, underscores and colons, a letter or digit first, not %.140q", id)
	}
	if err == nil {
		entry.Address, err = parseAddress(fields["address"])
	}
	if key := fields["host_key"]; err == nil && key != "" {
		if key, err = parseHostKey(key); err == nil {
			entry.HostKeys = []string{key}
		}
	}
	entry.Location = fields["location"]
	if err != nil {
		entry.Invalid = fmt.Sprintf("line %d: host %q: %v", node.Line, entry.ID, err)
	}
	return entry
}

// hostFields returns the texts of a host's keys, and the first fault. What is readable is returned
// even then, so that the host can be named.
func hostFields(node *yaml.Node) (map[string]string, error) {
	if node.Kind != yaml.MappingNode {
		return nil, errors.New("a host is described by id, address, location and host_key")
	}
	fields := make(map[string]string)
	var fault error
	found := func(format string, args ...any) {
		if fault == nil {
			fault = fmt.Errorf(format, args...)
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		_, twice := fields[key.Value]
		switch {
		case key.Value != "id" && key.Value != "address" && key.Value != "location" && key.Value != "host_key":
			found("line %d: %.40q is not known here: use id, address, location and host_key", key.Line, key.Value)
		case twice:
			found("line %d: %s is given twice", key.Line, key.Value)
		case value.Kind != yaml.ScalarNode:
			found("line %d: %s must be a text", key.Line, key.Value)
		case value.Tag == "!!null":
			fields[key.Value] = ""
		default:
			fields[key.Value] = strings.TrimSpace(value.Value)
		}
	}
	return fields, fault
}

func parseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if text == "" || err != nil {
		return netip.Addr{}, fmt.Errorf("address must be an IPv4 or IPv6 address, not %.64q", text)
	}
	address = address.Unmap()
	if address.IsUnspecified() || address.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("address %s cannot be a host's", address)
	}
	return address, nil
}

// parseHostKey checks that a text has the form of a public key: its kind, and the same kind again
// in the encoded key (RFC 4253, 6.6). It is returned without comment.
func parseHostKey(text string) (string, error) {
	fields := strings.Fields(text)
	if len(fields) >= 2 {
		blob, err := base64.StdEncoding.DecodeString(fields[1])
		if err == nil && len(blob) > 4 {
			size := binary.BigEndian.Uint32(blob)
			if rest := blob[4:]; uint64(size) < uint64(len(rest)) && string(rest[:size]) == fields[0] {
				return fields[0] + " " + fields[1], nil
			}
		}
	}
	return "", errors.New("host_key must be a public key such as the host's /etc/ssh/ssh_host_ed25519_key.pub")
}
