package inventory

import (
	"bytes"
	"net/netip"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// ipmiAsk sends a request to the BMC and returns its answer, from the completion code on. An error
// means that the BMC does not answer.
type ipmiAsk func(function, command byte, data ...byte) ([]byte, error)

// Requests of IPMI 2.0, and what they are about.
const (
	ipmiApplication = 0x06
	ipmiChannelInfo = 0x42 // Get Channel Info, section 22.24
	ipmiMediumLAN   = 4    // 802.3 LAN, table 6-3

	ipmiTransport     = 0x0C
	ipmiLANParameters = 0x02 // Get LAN Configuration Parameters, section 23.2

	// Parameters of a LAN channel (table 23-4).
	lanAddress     = 3
	lanMAC         = 5
	lanFamilies    = 51 // 0: IPv6 is switched off
	lanIPv6Static  = 56
	lanIPv6Dynamic = 59
)

const (
	// lastChannel is the last one that an implementation may use as it likes (table 6-1), and
	// lastGuess the last one that is worth a try where no channel is said to be a LAN.
	lastChannel = 11
	lastGuess   = 8
	// maxAddresses bounds the IPv6 addresses of each kind.
	maxAddresses = 4
)

// bmcLAN asks a BMC for the addresses of its network interface. Where there are several, it takes
// the first one that can be reached from elsewhere, or else the first one that has anything.
func bmcLAN(ask ipmiAsk) (*agentv1.Bmc, error) {
	r := &lanReader{ask: ask}
	lan, found := r.search(lastChannel, r.isLAN)
	if !found {
		lan, _ = r.search(lastGuess, func(byte) bool { return true })
	}
	if r.err != nil {
		return nil, r.err
	}
	return lan, nil
}

// lanReader asks until the BMC does not answer.
type lanReader struct {
	ask ipmiAsk
	err error
}

// request returns what follows the completion code of an answer; nil when the BMC refuses, answers
// with less than length bytes, or has not answered an earlier request.
func (r *lanReader) request(length int, function, command byte, data ...byte) []byte {
	if r.err != nil {
		return nil
	}
	answer, err := r.ask(function, command, data...)
	if r.err = err; err != nil || len(answer) < 1+length || answer[0] != 0 {
		return nil
	}
	return answer[1 : 1+length]
}

func (r *lanReader) isLAN(channel byte) bool {
	info := r.request(2, ipmiApplication, ipmiChannelInfo, channel)
	return info != nil && info[1]&0x7F == ipmiMediumLAN
}

// parameter returns a parameter of a LAN channel, or nil. Before it stands the revision of the
// parameter.
func (r *lanReader) parameter(length int, channel, parameter, set byte) []byte {
	data := r.request(1+length, ipmiTransport, ipmiLANParameters, channel, parameter, set, 0)
	if data == nil {
		return nil
	}
	return data[1:]
}

func (r *lanReader) search(last byte, isLAN func(channel byte) bool) (best *agentv1.Bmc, found bool) {
	best = new(agentv1.Bmc)
	for channel := byte(1); channel <= last; channel++ {
		if !isLAN(channel) {
			continue
		}
		found = true
		lan := r.addresses(channel)
		if address, err := netip.ParseAddr(lan.GetAddress()); len(lan.GetIpv6Addresses()) > 0 || err == nil && address.IsGlobalUnicast() {
			return lan, true
		}
		if best.GetAddress() == "" && best.GetMac() == "" {
			best = lan
		}
	}
	return best, found
}

// addresses reads the addresses of a channel. 0.0.0.0, and zeros or ones as a MAC, are none.
func (r *lanReader) addresses(channel byte) *agentv1.Bmc {
	lan := new(agentv1.Bmc)
	if address, ok := netip.AddrFromSlice(r.parameter(4, channel, lanAddress, 0)); ok && (address.IsGlobalUnicast() || address.IsLinkLocalUnicast()) {
		lan.Address = address.String()
	}
	if mac := r.parameter(6, channel, lanMAC, 0); len(bytes.Trim(mac, "\xFF")) > 0 {
		lan.Mac = hardwareAddress(mac)
	}
	families := r.parameter(1, channel, lanFamilies, 0)
	if families == nil || families[0] == 0 {
		return lan
	}
	for _, parameter := range []byte{lanIPv6Static, lanIPv6Dynamic} {
		for set := range byte(maxAddresses) {
			data := r.parameter(20, channel, parameter, set)
			if data == nil {
				break
			}
			if address := ipv6Address(data); address != "" {
				lan.Ipv6Addresses = append(lan.Ipv6Addresses, address)
			}
		}
	}
	return lan
}

// ipv6Address reads an address: set, source, 16 bytes of the address, length of the prefix, and the
// status, which is 0 for an address in use. An address of the link alone helps nobody.
func ipv6Address(data []byte) string {
	address := netip.AddrFrom16([16]byte(data[2:18]))
	if data[19] != 0 || !address.IsGlobalUnicast() || address.Is4In6() {
		return ""
	}
	return address.String()
}
