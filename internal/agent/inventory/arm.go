package inventory

// armImplementer is a designer of arm64 cores, with the names of those that servers and boards are
// built from. Both are under the names by which lscpu shows them.
type armImplementer struct {
	number, name string
	parts        []armPart
}

// armPart is a core.
type armPart struct{ number, name string }

// armImplementers are the designers by their number in the main ID register (Arm Architecture
// Reference Manual, MIDR_EL1), and their parts by part number. Maps would cost the agent code that
// fills them.
var armImplementers = []armImplementer{
	{"0x41", "ARM", []armPart{
		{"0xd02", "Cortex-A34"},
		{"0xd03", "Cortex-A53"},
		{"0xd04", "Cortex-A35"},
		{"0xd05", "Cortex-A55"},
		{"0xd06", "Cortex-A65"},
		{"0xd07", "Cortex-A57"},
		{"0xd08", "Cortex-A72"},
		{"0xd09", "Cortex-A73"},
		{"0xd0a", "Cortex-A75"},
		{"0xd0b", "Cortex-A76"},
		{"0xd0c", "Neoverse-N1"},
		{"0xd0d", "Cortex-A77"},
		{"0xd0e", "Cortex-A76AE"},
		{"0xd40", "Neoverse-V1"},
		{"0xd41", "Cortex-A78"},
		{"0xd42", "Cortex-A78AE"},
		{"0xd43", "Cortex-A65AE"},
		{"0xd44", "Cortex-X1"},
		{"0xd46", "Cortex-A510"},
		{"0xd47", "Cortex-A710"},
		{"0xd48", "Cortex-X2"},
		{"0xd49", "Neoverse-N2"},
		{"0xd4a", "Neoverse-E1"},
		{"0xd4b", "Cortex-A78C"},
		{"0xd4c", "Cortex-X1C"},
		{"0xd4d", "Cortex-A715"},
		{"0xd4e", "Cortex-X3"},
		{"0xd4f", "Neoverse-V2"},
		{"0xd80", "Cortex-A520"},
		{"0xd81", "Cortex-A720"},
		{"0xd82", "Cortex-X4"},
		{"0xd83", "Neoverse-V3AE"},
		{"0xd84", "Neoverse-V3"},
		{"0xd85", "Cortex-X925"},
		{"0xd87", "Cortex-A725"},
		{"0xd8e", "Neoverse-N3"},
	}},
	{"0x42", "Broadcom", []armPart{{"0x100", "Brahma-B53"}, {"0x516", "ThunderX2"}}},
	{"0x43", "Cavium", []armPart{
		{"0x0a0", "ThunderX"},
		{"0x0a1", "ThunderX-88XX"},
		{"0x0a2", "ThunderX-81XX"},
		{"0x0a3", "ThunderX-83XX"},
		{"0x0af", "ThunderX2-99xx"},
		{"0x0b0", "OcteonTX2"},
		{"0x0b1", "OcteonTX2-98XX"},
		{"0x0b2", "OcteonTX2-96XX"},
		{"0x0b3", "OcteonTX2-95XX"},
		{"0x0b8", "ThunderX3-T110"},
	}},
	{"0x46", "FUJITSU", []armPart{{"0x001", "A64FX"}}},
	{"0x48", "HiSilicon", []armPart{{"0xd01", "Kunpeng-920"}, {"0xd02", "TaiShan-v120"}, {"0xd40", "Cortex-A76"}}},
	{"0x4e", "NVIDIA", []armPart{{"0x000", "Denver"}, {"0x003", "Denver 2"}, {"0x004", "Carmel"}}},
	{"0x50", "APM", []armPart{{"0x000", "X-Gene"}}},
	{"0x51", "Qualcomm", []armPart{
		{"0x800", "Falkor-V1/Kryo"},
		{"0x801", "Kryo-V2"},
		{"0x802", "Kryo-3XX-Gold"},
		{"0x803", "Kryo-3XX-Silver"},
		{"0x804", "Kryo-4XX-Gold"},
		{"0x805", "Kryo-4XX-Silver"},
		{"0xc00", "Falkor"},
		{"0xc01", "Saphira"},
		{"0x001", "Oryon"},
	}},
	{"0x53", "Samsung", nil},
	{"0x56", "Marvell", nil},
	{"0x61", "Apple", []armPart{
		{"0x022", "Icestorm-M1"},
		{"0x023", "Firestorm-M1"},
		{"0x024", "Icestorm-M1-Pro"},
		{"0x025", "Firestorm-M1-Pro"},
		{"0x028", "Icestorm-M1-Max"},
		{"0x029", "Firestorm-M1-Max"},
		{"0x032", "Blizzard-M2"},
		{"0x033", "Avalanche-M2"},
	}},
	{"0x69", "Intel", nil},
	{"0x6d", "Microsoft", []armPart{{"0xd49", "Azure-Cobalt-100"}}},
	{"0x70", "Phytium", []armPart{
		{"0x303", "FTC310"}, {"0x660", "FTC660"}, {"0x661", "FTC661"}, {"0x662", "FTC662"}, {"0x663", "FTC663"}, {"0x664", "FTC664"}, {"0x862", "FTC862"},
	}},
	{"0xc0", "Ampere", []armPart{{"0xac3", "Ampere-1"}, {"0xac4", "Ampere-1a"}, {"0xac5", "Ampere-1b"}}},
}

// nameArm names an arm64 core by its IDs. An implementer that is not known keeps its number.
func (t *thread) nameArm() {
	if t.implementer == "" {
		return
	}
	t.vendor = t.implementer
	for _, implementer := range armImplementers {
		if implementer.number != t.implementer {
			continue
		}
		t.vendor = implementer.name
		for _, part := range implementer.parts {
			if part.number == t.part {
				t.model = part.name
			}
		}
	}
}
