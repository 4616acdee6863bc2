package static

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
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
// with the line; a fault of one host is told in its entry, and all are in faults.
func parse(data []byte) (entries []provider.Entry, faults []string, err error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil, errors.New("it is empty; a list without hosts is written as hosts: []")
	} else if err != nil {
		return nil, nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); err == nil {
		return nil, nil, errors.New("it holds more than one document")
	} else if !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	nodes, err := hostNodes(document.Content[0])
	if err != nil {
		return nil, nil, err
	}
	if len(nodes) > maximumHosts {
		return nil, nil, fmt.Errorf("it has more than %d hosts", maximumHosts)
	}
	entries, faults = entriesOf(nodes, len(nodes) > 0 && unended(data, nodes[len(nodes)-1]))
	return entries, faults, nil
}

// unended reports whether a list ends in the middle of a line, in a value of its last host that may
// go on: half of an address is an address, too. A value in quotes, or within brackets, has an end.
func unended(data []byte, host *yaml.Node) bool {
	value := host
	for len(value.Content) > 0 {
		value = value.Content[len(value.Content)-1]
	}
	plain := value.Kind == yaml.AliasNode || value.Kind == yaml.ScalarNode && value.Style&^yaml.TaggedStyle == 0
	return plain && !bytes.HasSuffix(data, []byte("\n")) && bytes.HasSuffix(data, []byte(value.Value))
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

// place is where hosts answer. Behind different jump hosts the same address is of different hosts;
// so it is on different ports.
type place struct {
	address netip.Addr
	jump    netip.AddrPort
}

func placeOf(entry provider.Entry) place {
	at := place{address: entry.Address}
	if entry.Access.Jump != nil {
		at.jump = entry.Access.Jump.Address
	}
	return at
}

// listed is one host of a list.
type listed struct {
	provider.Entry
	line  int
	entry int // its entry: that of the first host with its ID
}

// entriesOf returns one entry for each ID, and every fault, each once. Hosts that share an ID, an
// address or a host name are all unusable, because nobody can tell which of them is meant: the host
// name is what people call the machine by. The entry of a host tells the first of its faults. The
// last host of a list that is unended is unusable, too. It is compared with no other: half of an
// ID, an address or a host name may be the whole one of a host that nothing is wrong with.
func entriesOf(nodes []*yaml.Node, unended bool) (entries []provider.Entry, faults []string) {
	entries = make([]provider.Entry, 0, len(nodes))
	hosts := make([]listed, 0, len(nodes))
	byID := make(map[fleet.ProviderID]int, len(nodes))
	byPlace := make(map[place]map[uint16]int, len(nodes)) // the first host on each port
	byName := make(map[string]int, len(nodes))
	tell := func(fault string, of ...int) {
		faults = append(faults, fault)
		for _, i := range of {
			e := &entries[hosts[i].entry]
			e.Invalid = cmp.Or(e.Invalid, fault)
		}
	}
	share := func(first, i int, what string) {
		a, b := hosts[first], hosts[i]
		if a.entry != b.entry { // else it is told that the host is listed twice
			tell(fmt.Sprintf("lines %d and %d: hosts %q and %q have the same %s", a.line, b.line, a.ID, b.ID, what), first, i)
		}
	}
	for i, node := range nodes {
		h := listed{parseHost(node), node.Line, len(entries)}
		first, twice := byID[h.ID]
		twice = twice && h.ID != ""
		if unended && i == len(nodes)-1 {
			more := h.Invalid
			h.Invalid = fmt.Sprintf("line %d: host %q: the list ends in the middle of a line, which may be half of one: end it with a newline", h.line, h.ID)
			if faults = append(faults, h.Invalid); more != "" {
				faults = append(faults, more)
			}
			if !twice {
				entries = append(entries, h.Entry)
			}
			break
		}
		if twice {
			h.entry = hosts[first].entry
		} else {
			byID[h.ID] = i
			entries = append(entries, h.Entry)
		}
		hosts = append(hosts, h)
		if h.Invalid != "" {
			tell(h.Invalid, i)
		}
		if twice {
			tell(fmt.Sprintf("lines %d and %d: host %q is listed twice", hosts[first].line, h.line, h.ID), i)
		}
		if h.Address.IsValid() {
			ports := byPlace[placeOf(h.Entry)]
			if ports == nil {
				ports = make(map[uint16]int, 1)
				byPlace[placeOf(h.Entry)] = ports
			}
			for _, other := range samePort(ports, h.Access.Port) {
				share(other, i, "address "+h.Address.String())
			}
			if _, taken := ports[h.Access.Port]; !taken {
				ports[h.Access.Port] = i
			}
		}
		if other, taken := byName[h.Hostname]; taken && h.Hostname != "" {
			share(other, i, fmt.Sprintf("hostname %.140q", h.Hostname))
		}
		byName[h.Hostname] = i
	}
	return entries, faults
}

// samePort returns which of the hosts at a place, the first on each port, may answer on the same
// port as one more. One that names none answers on the port that is configured, which the list does
// not know; so the first of these shares its port with all others, and stands for them.
func samePort(ports map[uint16]int, port uint16) []int {
	if unnamed, ok := ports[0]; ok {
		return []int{unnamed}
	}
	if port == 0 {
		return slices.Sorted(maps.Values(ports))
	}
	if first, ok := ports[port]; ok {
		return []int{first}
	}
	return nil
}

// keys are what describes a host, in the order of the manual.
var keys = []string{"id", "hostname", "address", "port", "user", "host_key", "location", "labels", "jump"}

// parseHost reads one host.
func parseHost(node *yaml.Node) provider.Entry {
	entry := provider.Entry{Availability: fleet.AvailabilityPossiblyUsed, Status: fleet.ProviderStatusActive}
	fields, err := fieldsOf(node, "a host", keys...)
	id := fields.text("id", &err)
	if idForm.MatchString(id) {
		entry.ID, entry.Capacity = fleet.ProviderID(id), fleet.CapacityID(id)
	} else if err == nil {
		err = fmt.Errorf("id must be 1 to 128 letters, digits, dots, hyphens, underscores and colons, a letter or digit first, not %.140q", id)
	}
	address, hostKey := fields.text("address", &err), fields.text("host_key", &err)
	entry.Hostname, entry.Location = fields.text("hostname", &err), fields.text("location", &err)
	entry.Access.User = fields.text("user", &err)
	port := fields.text("port", &err)
	if err == nil {
		entry.Address, err = parseAddress(address)
	}
	if err == nil && hostKey != "" {
		if hostKey, err = parseHostKey(hostKey); err == nil {
			entry.HostKeys = []string{hostKey}
		}
	}
	if err == nil && entry.Hostname != "" && !idForm.MatchString(entry.Hostname) {
		err = fmt.Errorf("hostname must have the form of an id, not %.140q", entry.Hostname)
	}
	if err == nil {
		entry.Access.Port, err = parsePort(port)
	}
	if labels := fields["labels"]; err == nil && labels != nil {
		entry.Labels, err = parseLabels(labels)
	}
	if jump := fields["jump"]; err == nil && jump != nil {
		entry.Access.Jump, err = parseJump(jump)
	}
	if entry.Hostname == "" {
		entry.Hostname = string(entry.ID)
	}
	if err != nil {
		entry.Invalid = fmt.Sprintf("line %d: host %q: %v", node.Line, entry.ID, err)
	}
	return entry
}

// parseJump reads the host that a connection goes through. Its key must be given: trust on first
// use is for machines.
func parseJump(node *yaml.Node) (*provider.Jump, error) {
	fields, err := fieldsOf(node, "a jump host", "address", "port", "user", "host_key")
	address, port := fields.text("address", &err), fields.text("port", &err)
	jump := &provider.Jump{User: fields.text("user", &err)}
	hostKey := fields.text("host_key", &err)
	var at netip.Addr
	if err == nil {
		at, err = parseAddress(address)
	}
	number := uint16(0)
	if err == nil {
		number, err = parsePort(port)
	}
	if err == nil && hostKey == "" {
		err = errors.New("host_key must be set: the key of the jump host must be known")
	}
	if err == nil {
		jump.HostKey, err = parseHostKey(hostKey)
	}
	if err != nil {
		return nil, fmt.Errorf("jump: %w", err)
	}
	jump.Address = netip.AddrPortFrom(at, cmp.Or(number, 22))
	return jump, nil
}

// parseLabels returns labels in the order of their names.
func parseLabels(node *yaml.Node) (labels []string, err error) {
	if node.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: labels are written as name: value", node.Line)
	}
	if len(node.Content) > 2*fleet.MaxLabels { // before they are read: there may be very many
		return nil, fmt.Errorf("line %d: a host has at most %d labels", node.Line, fleet.MaxLabels)
	}
	given := make(map[string]bool)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, value := node.Content[i], node.Content[i+1]
		if value.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("line %d: a label has one value", name.Line)
		}
		label, err := fleet.NewLabel(name.Value, value.Value)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", name.Line, err)
		}
		if given[name.Value] {
			return nil, fmt.Errorf("line %d: label %s is given twice", name.Line, name.Value)
		}
		given[name.Value] = true
		labels = append(labels, label)
	}
	slices.Sort(labels)
	return labels, nil
}

func parsePort(text string) (uint16, error) {
	if text == "" {
		return 0, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("port must be from 1 to 65535, not %.40q", text)
	}
	return uint16(port), nil
}

// fields are the values of a mapping by their keys.
type fields map[string]*yaml.Node

// text returns the text of a key; empty when there is none. fault gets the first fault.
func (f fields) text(key string, fault *error) string {
	value := f[key]
	switch {
	case value == nil, value.Tag == "!!null":
		return ""
	case value.Kind != yaml.ScalarNode:
		if *fault == nil {
			*fault = fmt.Errorf("line %d: %s must be a text", value.Line, key)
		}
		return ""
	}
	return strings.TrimSpace(value.Value)
}

// fieldsOf returns the values of a mapping, and the first fault. What is readable is returned even
// then, so that the host can be named.
func fieldsOf(node *yaml.Node, what string, known ...string) (fields, error) {
	if node.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s is described by %s", what, enumerate(known))
	}
	found := make(fields)
	var fault error
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		_, twice := found[key.Value]
		switch {
		case !slices.Contains(known, key.Value):
			fault = cmp.Or(fault, fmt.Errorf("line %d: %.40q is not known here: use %s", key.Line, key.Value, enumerate(known)))
		case twice:
			fault = cmp.Or(fault, fmt.Errorf("line %d: %s is given twice", key.Line, key.Value))
		default:
			found[key.Value] = value
		}
	}
	return found, fault
}

func enumerate(words []string) string {
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

func parseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if text == "" || err != nil {
		return netip.Addr{}, fmt.Errorf("address must be an IPv4 or IPv6 address, not %.64q", text)
	}
	if address.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("address %.64q has a zone, which is an interface of one control plane: use an address that leads to the host without", text)
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
