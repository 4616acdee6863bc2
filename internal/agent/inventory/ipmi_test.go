package inventory

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// recordedBMC answers as recorded: by the request in hexadecimal, the answer from the completion
// code on. All else it refuses, with the code under "".
func recordedBMC(tb testing.TB, answers map[string]string) ipmiAsk {
	tb.Helper()
	return func(function, command byte, data ...byte) ([]byte, error) {
		request := fmt.Sprintf("%02x %02x % x", function, command, data)
		answer, ok := answers[request]
		if !ok {
			answer = answers[""]
		}
		decoded, err := hex.DecodeString(strings.ReplaceAll(answer, " ", ""))
		if err != nil {
			tb.Errorf("%q: %v", answer, err)
		}
		return decoded, nil
	}
}

const (
	ipmb   = "00 00 01 01 00 f2 1b 00 00 00"
	serial = "00 03 05 01 40 f2 1b 00 00 00"
	lan    = "00 01 04 01 80 f2 1b 00 00 00"
)

func TestBMCAddress(t *testing.T) {
	t.Parallel()
	const zeros, global, link = "00000000000000000000000000000000", "20010db8000000000000000000000005", "fe80000000000000ae1f6bfffe000001"
	plain := &agentv1.Bmc{Address: "192.0.2.9", Mac: "ac:1f:6b:00:00:01"}
	for name, test := range map[string]struct {
		answers map[string]string
		want    *agentv1.Bmc
	}{
		"LAN on channel 1": {map[string]string{
			"": "cc", "06 42 01": lan, "0c 02 01 03 00 00": "00 11 c0 00 02 09", "0c 02 01 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, plain},
		"LAN on channel 8, serial before": {map[string]string{
			"": "cc", "06 42 01": serial, "06 42 08": lan, "0c 02 01 03 00 00": "00 11 0a 00 00 01",
			"0c 02 08 03 00 00": "00 11 c0 00 02 09", "0c 02 08 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, plain},
		"a first channel that is not set up": {map[string]string{
			"": "cc", "06 42 01": lan, "06 42 02": ipmb, "06 42 03": lan,
			"0c 02 01 03 00 00": "00 11 00 00 00 00", "0c 02 01 05 00 00": "00 11 ac 1f 6b 00 00 99",
			"0c 02 03 03 00 00": "00 11 c0 00 02 09", "0c 02 03 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, plain},
		"the host's own channel before": {map[string]string{
			"": "cc", "06 42 01": lan, "06 42 02": lan,
			"0c 02 01 03 00 00": "00 11 a9 fe 00 11", "0c 02 01 05 00 00": "00 11 02 00 00 00 00 01",
			"0c 02 02 03 00 00": "00 11 c0 00 02 09", "0c 02 02 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, plain},
		"no DHCP server": {map[string]string{
			"": "c1", "06 42 01": lan, "0c 02 01 03 00 00": "00 11 a9 fe 00 11", "0c 02 01 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, &agentv1.Bmc{Address: "169.254.0.17", Mac: "ac:1f:6b:00:00:01"}},
		"no address anywhere": {map[string]string{
			"": "cc", "06 42 01": lan, "06 42 02": lan, "0c 02 01 05 00 00": "00 11 ff ff ff ff ff ff",
			"0c 02 02 03 00 00": "00 11 ff ff ff ff", "0c 02 02 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, &agentv1.Bmc{Mac: "ac:1f:6b:00:00:01"}},
		"a BMC that does not tell of its channels": {map[string]string{
			"": "c1", "0c 02 02 03 00 00": "00 11 c0 00 02 09", "0c 02 02 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, plain},
		"a BMC without LAN": {map[string]string{"": "cc", "06 42 01": serial}, &agentv1.Bmc{}},
		"answers cut short": {map[string]string{
			"": "", "06 42 01": "00 01", "06 42 02": lan, "0c 02 02 03 00 00": "00 11 c0 00 02", "0c 02 02 05 00 00": "00", "0c 02 02 33 00 00": "00 11",
		}, &agentv1.Bmc{}},
		"refusals with what was in the buffer": {map[string]string{
			"": "c1 01 04 01 80 f2 1b 00 00 00", "06 42 02": lan, "0c 02 02 05 00 00": "00 11 ac 1f 6b 00 00 01",
		}, &agentv1.Bmc{Mac: "ac:1f:6b:00:00:01"}},
		"answers that are too long": {map[string]string{
			"": "cc", "06 42 01": lan + "00 00", "0c 02 01 03 00 00": "00 11 c0 00 02 09 ff ff", "0c 02 01 05 00 00": "00 11 ac 1f 6b 00 00 01 ff",
		}, plain},
		"IPv6": {map[string]string{
			"": "c9", "06 42 01": lan, "0c 02 01 03 00 00": "00 11 c0 00 02 09", "0c 02 01 05 00 00": "00 11 ac 1f 6b 00 00 01", "0c 02 01 33 00 00": "00 11 02",
			"0c 02 01 38 00 00": "00 11 00 80" + global + "40 00", "0c 02 01 38 01 00": "00 11 01 00" + zeros + "00 01",
			"0c 02 01 3b 00 00": "00 11 00 01" + link + "40 00", "0c 02 01 3b 01 00": "00 11 01 02" + strings.Replace(global, "05", "06", 1) + "80 00",
			// another host has this one
			"0c 02 01 3b 02 00": "00 11 02 02" + strings.Replace(global, "05", "07", 1) + "80 03",
		}, &agentv1.Bmc{Address: "192.0.2.9", Ipv6Addresses: []string{"2001:db8::5", "2001:db8::6"}, Mac: "ac:1f:6b:00:00:01"}},
		"IPv6 alone": {map[string]string{
			"": "80", "06 42 01": lan, "06 42 02": lan, "0c 02 01 03 00 00": "00 11 00 00 00 00", "0c 02 01 33 00 00": "00 11 01",
			"0c 02 01 38 00 00": "00 11 00 80" + global + "40 00", "0c 02 02 03 00 00": "00 11 0a 00 00 01",
		}, &agentv1.Bmc{Ipv6Addresses: []string{"2001:db8::5"}}},
		"IPv6 switched off": {map[string]string{
			"": "80", "06 42 01": lan, "0c 02 01 03 00 00": "00 11 c0 00 02 09", "0c 02 01 05 00 00": "00 11 ac 1f 6b 00 00 01", "0c 02 01 33 00 00": "00 11 00",
			"0c 02 01 38 00 00": "00 11 00 80" + global + "40 00",
		}, plain},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := bmcLAN(recordedBMC(t, test.answers))
			if diff := cmp.Diff(test.want, got, protocmp.Transform()); diff != "" || err != nil {
				t.Errorf("%v, %s", err, diff)
			}
		})
	}
}

// A BMC that stops answering is asked no more, neither by us nor through the kernel.
func TestSilentBMC(t *testing.T) {
	t.Parallel()
	const dir = "sys/class/ipmi/ipmi0/device/bmc/"
	p := &probe{root: tree(t, map[string]string{dir + "ipmi_version": "2.0\n", dir + "firmware_revision": "1.73\n"})}
	asked := 0
	got := p.bmc(nil, func(byte, byte, ...byte) ([]byte, error) {
		if asked++; asked == 3 {
			return nil, errBMCSilent
		}
		return []byte{0, 1, 4, 1, 0, 0}, nil
	})
	if asked != 3 || !proto.Equal(got, &agentv1.Bmc{}) {
		t.Errorf("asked %d times: %v", asked, got)
	}
	if len(p.warnings) != 1 || p.warnings[0] != "the BMC cannot be asked: it does not answer" {
		t.Errorf("%q", p.warnings)
	}
}

func TestBMCThatAnswers(t *testing.T) {
	t.Parallel()
	const dir = "sys/class/ipmi/ipmi0/device/bmc/"
	ask := recordedBMC(t, map[string]string{"": "cc", "06 42 01": lan, "0c 02 01 03 00 00": "00 11 c0 00 02 09"})
	p := &probe{root: tree(t, map[string]string{dir + "ipmi_version": "2.0\n", dir + "firmware_revision": "1.73\n"})}
	if got, want := p.bmc(nil, ask), (&agentv1.Bmc{IpmiVersion: "2.0", FirmwareVersion: "1.73", Address: "192.0.2.9"}); !proto.Equal(got, want) {
		t.Errorf("%v", got)
	}
	p = &probe{root: t.TempDir()}
	if got, want := p.bmc(nil, ask), (&agentv1.Bmc{Address: "192.0.2.9"}); !proto.Equal(got, want) || len(p.warnings) > 0 {
		t.Errorf("without its class: %v, %q", got, p.warnings)
	}
	text := string(Text(&agentv1.HardwareReport{Bmc: &agentv1.Bmc{Address: "192.0.2.9", Ipv6Addresses: []string{"2001:db8::5"}, Mac: "ac:1f:6b:00:00:01"}}))
	if want := "address 192.0.2.9 2001:db8::5, MAC ac:1f:6b:00:00:01\n"; !strings.Contains(text, want) {
		t.Errorf("%q is not in %s", want, text)
	}
}

// fakeIPMI is a kernel that queues what it is told to for each request. Its file can be read from
// while something is queued.
type fakeIPMI struct {
	signal *os.File
	answer func(request ipmiRequest, data []byte) []ipmiReceived
	queue  []ipmiReceived
}

func newFakeIPMI(t *testing.T, answer func(request ipmiRequest, data []byte) []ipmiReceived) *ipmiDevice {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = out.Close(), in.Close() })
	f := &fakeIPMI{signal: in, answer: answer}
	return &ipmiDevice{file: out, deadline: time.Now().Add(5 * time.Second), ioctl: func(number uintptr, argument unsafe.Pointer) error {
		if number == ipmiSend {
			return f.send((*ipmiRequest)(argument))
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			return err
		}
		return f.receive((*ipmiReceived)(argument))
	}}
}

func (f *fakeIPMI) send(request *ipmiRequest) error {
	if address := (*ipmiAddress)(request.address); address.kind != 0x0C || address.channel != 0x0F || request.addressLength != 8 {
		return unix.EINVAL
	}
	data := unsafe.Slice((*byte)(request.message.data), request.message.length)
	answers := f.answer(*request, data)
	f.queue = append(f.queue, answers...)
	_, err := f.signal.Write(make([]byte, len(answers)))
	return err
}

func (f *fakeIPMI) receive(to *ipmiReceived) error {
	next := f.queue[0]
	f.queue = f.queue[1:]
	if next.message.data == nil {
		return unix.EAGAIN
	}
	buffer := unsafe.Slice((*byte)(to.message.data), to.message.length)
	next.message.length = uint16(copy(buffer, unsafe.Slice((*byte)(next.message.data), next.message.length)))
	next.message.data, next.address, next.addressLength = to.message.data, to.address, 8
	*to = next
	return nil
}

func received(kind int32, id int, data string) ipmiReceived {
	return ipmiReceived{kind: kind, id: id, message: ipmiMessage{length: uint16(len(data)), data: unsafe.Pointer(unsafe.StringData(data))}}
}

// The sizes of the structures are part of the numbers of the calls.
func TestIPMINumbers(t *testing.T) {
	t.Parallel()
	if got := 2<<30 | unsafe.Sizeof(ipmiRequest{})<<16 | 'i'<<8 | 13; got != ipmiSend {
		t.Errorf("send: %#x", got)
	}
	if got := 3<<30 | unsafe.Sizeof(ipmiReceived{})<<16 | 'i'<<8 | 11; got != ipmiReceive {
		t.Errorf("receive: %#x", got)
	}
	if got := unsafe.Sizeof(ipmiAddress{}); got != 8 {
		t.Errorf("an address of %d bytes", got)
	}
}

// An answer is known by its request. What else comes on the way is left out.
func TestIPMIDevice(t *testing.T) {
	t.Parallel()
	device := newFakeIPMI(t, func(r ipmiRequest, data []byte) []ipmiReceived {
		answer := string(append([]byte{0, r.message.function, r.message.command}, data...))
		return []ipmiReceived{received(2, r.id, "event"), received(1, r.id-1, "late"), {}, received(1, r.id, answer)}
	})
	for range 3 {
		got, err := device.ask(0x0C, 0x02, 1, 3, 0, 0)
		if want := []byte{0, 0x0C, 0x02, 1, 3, 0, 0}; err != nil || !bytes.Equal(got, want) {
			t.Errorf("% x, %v", got, err)
		}
	}
	device = newFakeIPMI(t, func(r ipmiRequest, _ []byte) []ipmiReceived {
		return []ipmiReceived{received(1, r.id-1, "late")}
	})
	device.deadline = time.Now().Add(50 * time.Millisecond)
	if _, err := device.ask(0x06, 0x42, 1); !errors.Is(err, errBMCSilent) {
		t.Errorf("a BMC that hangs: %v", err)
	}
	device.deadline = time.Now()
	send := device.ioctl
	device.ioctl = func(number uintptr, argument unsafe.Pointer) error {
		if number != ipmiSend {
			t.Error("it is waited for after the time for all of them")
		}
		return send(number, argument)
	}
	if _, err := device.ask(0x06, 0x42, 1); !errors.Is(err, errBMCSilent) {
		t.Errorf("when the time is over: %v", err)
	}
	device = newFakeIPMI(t, nil)
	device.ioctl = func(uintptr, unsafe.Pointer) error { return unix.EINVAL }
	if _, err := device.ask(0x06, 0x42, 1); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a request that is not taken: %v", err)
	}
}

// FuzzIPMI: a BMC may answer anything. Each answer begins with its length.
func FuzzIPMI(f *testing.F) {
	f.Add([]byte("\x03\x00\x01\x04\x06\x00\x11\xc0\x00\x02\x09\x08\x00\x11\xac\x1f\x6b\x00\x00\x01\x01\x80"))
	f.Add(append([]byte("\x03\x00\x01\x04\x00\x00\x03\x00\x11\x02\x16\x00\x11\x00\x80\x20\x01\x0d\xb8"), make([]byte, 14)...))
	f.Add([]byte("\x01\xcc\x01\xc1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		asked := 0
		lan, err := bmcLAN(func(byte, byte, ...byte) ([]byte, error) {
			asked++
			if len(data) == 0 {
				return nil, nil
			}
			end := min(len(data), 1+int(data[0]))
			answer := data[1:end]
			data = data[end:]
			return answer, nil
		})
		if err != nil || asked > lastChannel*(1+3+2*maxAddresses) {
			t.Errorf("asked %d times: %v", asked, err)
		}
		for _, address := range append(lan.GetIpv6Addresses(), lan.GetAddress()) {
			if _, err := netip.ParseAddr(address); err != nil && address != "" {
				t.Error(err)
			}
		}
		if len(lan.GetIpv6Addresses()) > 2*maxAddresses {
			t.Errorf("%q", lan.GetIpv6Addresses())
		}
	})
}
