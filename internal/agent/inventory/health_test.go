package inventory

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

func TestNVMeHealth(t *testing.T) {
	t.Parallel()
	page := make([]byte, nvmeHealthSize)
	page[1], page[2], page[5] = 0x3A, 0x01, 103 // 314 K
	page[128], page[160], page[168] = 9, 4, 1   // a counter above 64 bits keeps its lower half
	health, err := parseNVMeHealth(page)
	want := &agentv1.Health{Passed: true, PercentageUsed: 103, PowerOnHours: 9, MediaErrors: 4, TemperatureCelsius: 41}
	if err != nil || !proto.Equal(health, want) {
		t.Errorf("%v, %v", health, err)
	}
	page[0] = 4
	if health, _ := parseNVMeHealth(page); health.GetPassed() {
		t.Error("a critical warning is no warning")
	}
}

// attribute is one entry of SMART data: its number, its normalized value, and its raw bytes.
type attribute struct {
	number, value byte
	raw           []byte
}

func smartData(attributes ...attribute) []byte {
	data := make([]byte, sector)
	for i, a := range attributes {
		entry := data[2+12*i:][:12]
		entry[0], entry[3] = a.number, a.value
		copy(entry[5:11], a.raw)
	}
	return data
}

func TestSmartData(t *testing.T) {
	t.Parallel()
	hours := func(n uint32) attribute { return attribute{9, 100, le32(n)} }
	for name, test := range map[string]struct {
		drive      ataIdentity
		rotational bool
		attributes []attribute
		want       *agentv1.Health
	}{
		"a disk": {
			ataIdentity{model: "ST4000NM0035-1V4107", firmware: "TN05"},
			true,
			[]attribute{{5, 100, le32(8)}, {9, 80, []byte{0x10, 0x27, 0, 7}}, {194, 30, []byte{33, 0, 20}}, {190, 67, []byte{99}}, {187, 98, []byte{2}}},
			&agentv1.Health{PercentageUsed: -1, ReallocatedSectors: 8, PowerOnHours: 10000, TemperatureCelsius: 33, MediaErrors: 2},
		},
		"a disk on its way out": {
			ataIdentity{model: "WDC WD40EFRX-68N32N0"},
			true,
			[]attribute{{197, 200, le32(24)}, {198, 200, le32(16)}},
			&agentv1.Health{PercentageUsed: -1, PendingSectors: 24, OfflineUncorrectableSectors: 16},
		},
		"minutes": {
			ataIdentity{model: "TOSHIBA MK5061GSYN", firmware: "MH000D"}, true, []attribute{hours(60 * 43000)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 43000},
		},
		"minutes of long ago": {
			ataIdentity{model: "Maxtor 6Y080L0"}, true, []attribute{hours(60*1000 + 59)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 1000},
		},
		"a later Maxtor": {
			ataIdentity{model: "Maxtor 6V250F0"}, true, []attribute{hours(1000)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 1000},
		},
		"half minutes": {
			ataIdentity{model: "SAMSUNG HM160JI", firmware: "AD100-16"}, true, []attribute{hours(120 * 9)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 9},
		},
		"half minutes by firmware": {
			ataIdentity{model: "SAMSUNG SP1614C", firmware: "SW100-34"}, true, []attribute{hours(120 * 9)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 9},
		},
		"hours by firmware": {
			ataIdentity{model: "SAMSUNG SP0842N", firmware: "BH100-35"}, true, []attribute{hours(9)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 9},
		},
		"seconds": {
			ataIdentity{model: "FUJITSU MHV2080BH", firmware: "00840028"}, true, []attribute{hours(3600 * 4)}, &agentv1.Health{PercentageUsed: -1, PowerOnHours: 4},
		},
		"an Intel SSD": {
			ataIdentity{model: "INTEL SSDSC2KB480G8"}, false, []attribute{{233, 93, nil}, {177, 50, nil}}, &agentv1.Health{PercentageUsed: 7},
		},
		"a Samsung SSD": {
			ataIdentity{model: "SAMSUNG MZ7LH480HAHQ-00005"}, false, []attribute{{177, 99, le32(12)}}, &agentv1.Health{PercentageUsed: 1},
		},
		"a Micron SSD": {
			ataIdentity{model: "Micron_5300_MTFDDAK480TDS"}, false, []attribute{{202, 97, le32(3)}}, &agentv1.Health{PercentageUsed: 3},
		},
		"an SSD of somebody else": {ataIdentity{model: "Whatever"}, false, []attribute{{233, 1, nil}, {177, 1, nil}}, &agentv1.Health{PercentageUsed: -1}},
		"a Samsung disk":          {ataIdentity{model: "SAMSUNG HD103UJ"}, true, []attribute{{177, 99, nil}}, &agentv1.Health{PercentageUsed: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseSmartData(smartData(test.attributes...), test.drive, test.rotational)
			if err != nil || !proto.Equal(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestSmartStatus(t *testing.T) {
	t.Parallel()
	sense := make([]byte, 22)
	sense[0], sense[8] = 0x72, 0x09
	for _, test := range []struct {
		middle, high byte
		passed, ok   bool
	}{{0x4F, 0xC2, true, true}, {0xF4, 0x2C, false, true}, {0, 0, false, false}} {
		sense[17], sense[19] = test.middle, test.high
		if passed, err := parseSmartStatus(sense); passed != test.passed || (err == nil) != test.ok {
			t.Errorf("%x %x: %v, %v", test.middle, test.high, passed, err)
		}
	}
	if passed, err := parseSmartStatus([]byte{0x70, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x4F, 0xC2}); !passed || err != nil {
		t.Errorf("fixed format: %v, %v", passed, err)
	}
}

// The commands that reach a drive, byte by byte as SAT-3 has them.
func TestATACommands(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		got, want []byte
	}{
		"identify":     {ataIdentify.encode(4<<1, 0x0E), []byte{0x85, 0x08, 0x0E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xEC, 0}},
		"SMART data":   {ataSmartData.encode(4<<1, 0x0E), []byte{0x85, 0x08, 0x0E, 0, 0xD0, 0, 0, 0, 0, 0, 0x4F, 0, 0xC2, 0, 0xB0, 0}},
		"SMART status": {ataSmartStatus.encode(3<<1, 0x20), []byte{0x85, 0x06, 0x20, 0, 0xDA, 0, 0, 0, 0, 0, 0x4F, 0, 0xC2, 0, 0xB0, 0}},
		"wear":         {ataWear.encode(4<<1, 0x0E), []byte{0x85, 0x09, 0x0E, 0, 0, 0, 0, 0, 0x04, 0, 0x07, 0, 0, 0, 0x2F, 0}},
	} {
		if !bytes.Equal(test.got, test.want) {
			t.Errorf("%s: % x, want % x", name, test.got, test.want)
		}
	}
}

func TestWearPage(t *testing.T) {
	t.Parallel()
	page := make([]byte, sector)
	page[0], page[2], page[8] = 1, 7, 104
	for flags, want := range map[byte]int32{0xC0: 104, 0xE0: 104, 0x80: -1, 0: -1} {
		page[15] = flags
		if got := parseWearPage(page); got != want {
			t.Errorf("flags %x: %d, want %d", flags, got, want)
		}
	}
	page[2], page[15] = 1, 0xC0
	if got := parseWearPage(page); got != -1 {
		t.Errorf("another page: %d", got)
	}
}

// identify is the data of IDENTIFY DEVICE.
func identify(model, serial, firmware string, word87 uint16) []byte {
	data := make([]byte, sector)
	put := func(word, length int, text string) {
		text += strings.Repeat(" ", length-len(text))
		for i := 0; i < length; i += 2 {
			data[2*word+i], data[2*word+i+1] = text[i+1], text[i]
		}
	}
	put(10, 20, serial)
	put(23, 8, firmware)
	put(27, 40, model)
	binary.LittleEndian.PutUint16(data[2*87:], word87)
	return data
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	for word87, logs := range map[uint16]bool{0x4020: true, 0x4000: false, 0xC020: false, 0x0020: false} {
		want := ataIdentity{model: "Samsung SSD 860 EVO 500GB", serial: "S3Z1NB0K", firmware: "RVT01B6Q", logs: logs}
		if got, err := parseIdentity(identify(want.model, want.serial, want.firmware, word87)); err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

// logPage encodes a log page; parameters go by their code.
func logPage(code, subpage byte, parameters ...[]byte) []byte {
	body := bytes.Join(parameters, nil)
	return append(binary.BigEndian.AppendUint16([]byte{code, subpage}, uint16(len(body))), body...)
}

func logValue(code uint16, value ...byte) []byte {
	return append(append(binary.BigEndian.AppendUint16(nil, code), 0x03, byte(len(value))), value...)
}

func TestSASHealth(t *testing.T) {
	t.Parallel()
	fine := logPage(0x2F, 0, logValue(0, 0, 0, 34))
	for name, test := range map[string]struct {
		pages map[int][]byte
		want  *agentv1.Health
	}{
		"a disk": {map[int][]byte{
			logExceptions: fine, logTemperature: logPage(0x0D, 0, logValue(0, 0, 34), logValue(1, 0, 60)),
			logBackground:  logPage(0x15, 0, logValue(0, 0, 0x10, 0, 59, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
			logPending:     logPage(0x15, 1, logValue(0, 0, 0, 0, 3)),
			logReadErrors:  logPage(0x03, 0, logValue(3, 9), logValue(6, 0, 0, 0, 0, 0, 0, 0, 2)),
			logWriteErrors: logPage(0x02, 0, logValue(6, 0, 0, 0, 1)),
			logVerify:      logPage(0x05, 0, logValue(6, 4)),
		}, &agentv1.Health{
			Passed: true, PercentageUsed: -1, TemperatureCelsius: 34, PowerOnHours: 0x10003B / 60, PendingSectors: 3, MediaErrors: 7,
		}},
		"an SSD":                 {map[int][]byte{logExceptions: fine, logSolidState: logPage(0x11, 0, logValue(1, 0, 0, 0, 12))}, &agentv1.Health{Passed: true, PercentageUsed: 12}},
		"expects to fail":        {map[int][]byte{logExceptions: logPage(0x2F, 0, logValue(0, 0x5D, 0x10, 50))}, &agentv1.Health{PercentageUsed: -1}},
		"is too hot":             {map[int][]byte{logExceptions: logPage(0x2F, 0, logValue(0, 0x0B, 0x01, 70))}, &agentv1.Health{Passed: true, PercentageUsed: -1}},
		"has no thermometer":     {map[int][]byte{logExceptions: fine, logTemperature: logPage(0x0D, 0, logValue(0, 0, 0xFF))}, &agentv1.Health{Passed: true, PercentageUsed: -1}},
		"a counter of any width": {map[int][]byte{logExceptions: fine, logReadErrors: logPage(0x03, 0, logValue(6, bytes.Repeat([]byte{0xFF}, 9)...))}, &agentv1.Health{Passed: true, PercentageUsed: -1, MediaErrors: 1<<63 - 1}},
		"no verdict":             {map[int][]byte{logTemperature: logPage(0x0D, 0, logValue(0, 0, 34))}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseLogPages(test.pages)
			if (err != nil) != (test.want == nil) || err == nil && !proto.Equal(got, test.want) {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestGrownDefects(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header []byte
		want   int64
	}{
		"short addresses":         {[]byte{0, 0x08, 0, 0, 0, 0, 0, 20}, 5},
		"physical addresses":      {[]byte{0, 0x0D, 0, 0, 0, 0, 0, 24}, 3},
		"none":                    {[]byte{0, 0x08, 0, 0, 0, 0, 0, 0}, 0},
		"the list of the maker's": {[]byte{0, 0x10, 0, 0, 0, 0, 0, 80}, 0},
	} {
		if got := parseDefectHeader(test.header); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
	for name, test := range map[string]struct {
		sense []byte
		want  bool
	}{
		"another form, descriptors": {[]byte{0x72, 0x01, 0x1C, 0x00}, true},
		"another form, fixed":       {[]byte{0x70, 0, 0x01}, true},
		"illegal request":           {[]byte{0x70, 0, 0x05}, false},
		"nothing":                   {nil, false},
	} {
		if got := defectListFollows(test.sense); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func FuzzPages(f *testing.F) {
	f.Add([]byte("\x00\x80\x00\x08  SER123"))
	f.Add([]byte("\x00\x80\xff\xff1"))
	f.Add(append(append([]byte{0, 0x89, 2, 0x38}, make([]byte, 56)...), identify("Model", "Serial", "1.0", 0x4020)...))
	f.Add(logPage(0x2F, 0, logValue(0, 0x5D, 0x10, 50)))
	f.Add(smartData(attribute{9, 100, le32(5)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if serial := parseSerialPage(data); !utf8.ValidString(serial) {
			t.Errorf("%q", serial)
		}
		identity, _ := parseInformationPage(data)
		if !utf8.ValidString(identity.model) {
			t.Errorf("%q", identity.model)
		}
		if health, err := parseSmartData(data, identity, false); err == nil && (health.GetPercentageUsed() < -1 || health.GetPowerOnHours() < 0) {
			t.Errorf("%v", health)
		}
		_, _ = parseNVMeHealth(data)
		_, _ = parseSmartStatus(data)
		_ = parseWearPage(data)
		_ = defectListFollows(data)
		if len(data) >= 8 {
			_ = parseDefectHeader(data)
		}
		pages := map[int][]byte{}
		for _, page := range []int{logReadErrors, logTemperature, logSolidState, logBackground, logPending, logExceptions} {
			pages[page] = data
			if len(data) >= 4 {
				pages[page] = cutPage(data)
			}
		}
		if health, err := parseLogPages(pages); err == nil && (health.GetMediaErrors() < 0 || health.GetPowerOnHours() < 0) {
			t.Errorf("%v", health)
		}
	})
}
