package kexec

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/therootcompany/xz"
)

// maxModule bounds a module or a firmware file, uncompressed.
const maxModule = 128 * mebibyte

// Module is a kernel module of the running kernel.
type Module struct {
	Name string
	// Path of its file, as modules.dep names it: relative to the directory of the release.
	Path string
}

// Target is where the module lies in the file system in memory, uncompressed.
func (m Module) Target() string { return "/lib/modules/" + m.Name + ".ko" }

// alsoLoaded are directories of modules that are carried where they are loaded, although no device
// in use is bound to them.
var alsoLoaded = []string{
	"drivers/net/", "drivers/scsi/", "drivers/ata/", "drivers/nvme/", "drivers/block/virtio", "drivers/virtio/", "drivers/hv/", "drivers/mmc/",
	"drivers/usb/host/", "drivers/usb/storage/", "drivers/message/", ipmiDir, "drivers/watchdog/", "drivers/pci/", "drivers/xen",
	"drivers/firmware/", "drivers/hid/", "fs/efivarfs/", "fs/fat/", "fs/nls/", "lib/crc", "net/packet/", "net/ipv6/ipv6",
}

// ipmiDir has the drivers of BMCs. Where one is loaded, ipmi_devintf makes the device by which the
// agent asks the BMC; not every system loads it.
const ipmiDir = "drivers/char/ipmi/"

// byKind are modules of virtual network interfaces.
var byKind = map[string]string{"bond": "bonding", "vlan": "8021q", "bridge": "bridge"}

// kernelModules knows the modules of one release.
type kernelModules struct {
	dir string
	// path and needs are by name; needs are what must be loaded before.
	path    map[string]string
	needs   map[string][]string
	builtin map[string]bool
}

// chooseModules fills in the modules and their firmware.
func (p *Plan) chooseModules(kinds []string) error {
	all, err := readModules(p.path("/lib/modules/" + p.Release))
	if err != nil {
		return fmt.Errorf("the modules of the running kernel (%s) are not there: %w", p.Release, err)
	}
	c := &chooser{all: all, chosen: map[string]bool{}}
	var missing []string
	loaded := p.loaded()
	used := p.inUse()
	for name, device := range used.own {
		if c.all.path[name] == "" && !slices.Contains(loaded, name) {
			continue // built in, although modules.builtin need not have it: pcieportdrv is not there
		}
		if err := c.add(name); err != nil {
			missing = append(missing, fmt.Sprintf("the driver %s of %s: %v", name, device, err))
		}
	}
	for _, kind := range kinds {
		if name := byKind[kind]; name != "" {
			if err := c.add(name); err != nil {
				missing = append(missing, fmt.Sprintf("the module %s of a %s: %v", name, kind, err))
			}
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return errors.New(strings.Join(missing, "; "))
	}
	p.addOptional(c, used.suppliers)
	p.Modules = c.order
	return p.chooseFirmware()
}

// addOptional adds those of suppliers, the modules that are loaded besides, and those that help
// where they are there.
func (p *Plan) addOptional(c *chooser, suppliers drivers) {
	optional := append(slices.Sorted(maps.Keys(suppliers)), "af_packet")
	for _, fs := range installedFS {
		optional = append(optional, fs.name)
	}
	if _, err := os.Stat(p.path("sys/firmware/efi")); err == nil {
		optional = append(optional, "efivarfs")
	}
	for _, name := range p.loaded() {
		path := strings.TrimPrefix(c.all.path[name], "kernel/")
		if slices.ContainsFunc(alsoLoaded, func(dir string) bool { return strings.HasPrefix(path, dir) }) {
			optional = append(optional, name)
		}
		if strings.HasPrefix(path, ipmiDir) {
			optional = append(optional, "ipmi_devintf")
		}
	}
	for _, name := range optional {
		if c.all.path[name] == "" {
			if device := suppliers[name]; device != "" && slices.Contains(p.loaded(), name) {
				p.warn("the module %s, of what supplies %s, is not carried: the kernel's list of modules does not have it", name, device)
			}
			continue
		}
		if err := c.add(name); err != nil {
			p.warn("the module %s is not carried: %v", name, err)
		}
	}
}

// loaded returns the modules that the running kernel has loaded.
func (p *Plan) loaded() []string {
	var names []string
	for _, line := range strings.Split(p.text("proc/modules"), "\n") {
		names = append(names, normal(firstWord(line)))
	}
	return names
}

// drivers are modules by name, each with the name of a device that it drives.
type drivers map[string]string

// inUse has the modules that drive the network interfaces and disks that are there, and those that
// drive their suppliers: what powers or clocks a device, for example.
type inUse struct {
	own, suppliers drivers
	// seen are the devices whose suppliers are known; nil: suppliers do not count.
	seen map[string]bool
}

// inUse finds the modules that are in use. Suppliers count where there is a device tree: elsewhere
// the firmware sees to what they do, and they are such as graphics cards. The kernel names modules
// that are built into it, too.
func (p *Plan) inUse() inUse {
	found := inUse{own: drivers{}, suppliers: drivers{}}
	if _, err := os.Stat(p.path("sys/firmware/devicetree/base/compatible")); err == nil {
		found.seen = map[string]bool{}
	}
	for _, class := range []string{"net", "block", "nvme", "scsi_host", "mmc_host", "watchdog"} {
		dir := p.path("/sys/class/" + class)
		entries, _ := os.ReadDir(dir)
		for _, entry := range entries {
			// A partition's parents are those of its disk.
			p.driversOf(filepath.Join(dir, entry.Name(), "device"), entry.Name(), found, found.own)
		}
	}
	return found
}

// driversOf adds the drivers of a device and of its parents, and those of what supplies them.
func (p *Plan) driversOf(device, name string, found inUse, to drivers) {
	device, err := filepath.EvalSymlinks(device)
	if err != nil {
		return
	}
	for top := p.path("/sys/devices"); strings.HasPrefix(device, top+"/"); device = filepath.Dir(device) {
		if module, err := os.Readlink(filepath.Join(device, "driver/module")); err == nil {
			to[normal(filepath.Base(module))] = name
		}
		if found.seen == nil || found.seen[device] {
			continue
		}
		found.seen[device] = true // suppliers may be each other's
		entries, _ := os.ReadDir(device)
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), "supplier:") {
				p.driversOf(filepath.Join(device, entry.Name(), "supplier"), name, found, found.suppliers)
			}
		}
	}
}

// chooser puts modules in their order.
type chooser struct {
	all    *kernelModules
	chosen map[string]bool
	order  []Module
}

// add adds a module after what it needs. A module that is built into the kernel needs nothing.
func (c *chooser) add(name string) error {
	if c.chosen[name] || c.all.builtin[name] {
		return nil
	}
	path, ok := c.all.path[name]
	if !ok {
		return errors.New("the kernel's list of modules does not have it")
	}
	if _, err := os.Stat(filepath.Join(c.all.dir, path)); err != nil {
		return fmt.Errorf("its file is not there (%s)", path)
	}
	c.chosen[name] = true // before its dependencies: a circle must end
	for _, need := range c.all.needs[name] {
		if err := c.add(need); err != nil {
			return fmt.Errorf("it needs %s: %w", need, err)
		}
	}
	c.order = append(c.order, Module{Name: name, Path: path})
	return nil
}

// readModules reads what depmod has written of a release.
func readModules(dir string) (*kernelModules, error) {
	k := &kernelModules{dir: dir, path: map[string]string{}, needs: map[string][]string{}, builtin: map[string]bool{}}
	dep, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(dep))
	lines.Buffer(nil, mebibyte)
	for lines.Scan() {
		path, needs, ok := strings.Cut(lines.Text(), ":")
		if !ok {
			continue
		}
		name := moduleName(path)
		k.path[name] = path
		for _, need := range strings.Fields(needs) {
			k.needs[name] = append(k.needs[name], moduleName(need))
		}
		slices.Reverse(k.needs[name]) // depmod names the deepest last
	}
	builtin, _ := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	for _, path := range strings.Fields(string(builtin)) {
		k.builtin[moduleName(path)] = true
	}
	k.softDependencies()
	return k, lines.Err()
}

// softDependencies adds the modules that others ask for without a symbol (modules.softdep), where
// they are there. What is asked for may be an alias, such as an algorithm of the kernel's.
func (k *kernelModules) softDependencies() {
	text, _ := os.ReadFile(filepath.Join(k.dir, "modules.softdep"))
	aliases := k.aliases()
	for _, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "softdep" {
			continue
		}
		name, before := normal(words[1]), false
		for _, word := range words[2:] {
			if strings.HasSuffix(word, ":") {
				before = word == "pre:"
				continue
			}
			for _, need := range append(aliases[normal(word)], normal(word)) {
				if before && k.path[need] != "" && need != name {
					k.needs[name] = append(k.needs[name], need)
				}
			}
		}
	}
}

// aliases returns the modules behind the aliases that are names, and no patterns of hardware
// (modules.alias).
func (k *kernelModules) aliases() map[string][]string {
	text, _ := os.ReadFile(filepath.Join(k.dir, "modules.alias"))
	found := map[string][]string{}
	for _, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		if len(words) == 3 && words[0] == "alias" && !strings.ContainsAny(words[1], "*?[:") {
			alias := normal(words[1])
			found[alias] = append(found[alias], normal(words[2]))
		}
	}
	return found
}

// moduleName returns the name of a module out of its path.
func moduleName(path string) string {
	base, _, _ := strings.Cut(filepath.Base(path), ".ko")
	return normal(base)
}

// normal returns a module's name as the kernel writes it.
func normal(name string) string { return strings.ReplaceAll(name, "-", "_") }

// chooseFirmware finds the firmware that the modules name, and adds up how large modules and
// firmware are.
func (p *Plan) chooseFirmware() error {
	wanted := map[string]bool{}
	for _, m := range p.Modules {
		data, err := readFile(filepath.Join(p.path("/lib/modules/"+p.Release), m.Path))
		if err != nil {
			return fmt.Errorf("the module %s cannot be read: %w", m.Name, err)
		}
		p.unpacked += int64(len(data))
		names := firmwareOf(data)
		found := false
		for _, name := range names {
			if p.firmwarePath(name) != "" {
				wanted[name], found = true, true
			}
		}
		if len(names) > 0 && !found {
			p.warn("the module %s names firmware (%s and others), and none of it is here", m.Name, names[0])
		}
	}
	p.Firmware = slices.Sorted(maps.Keys(wanted))
	for _, name := range p.Firmware {
		data, err := readFile(p.firmwarePath(name))
		if err != nil {
			return fmt.Errorf("the firmware %s cannot be read: %w", name, err)
		}
		p.unpacked += int64(len(data))
	}
	return nil
}

// firmwarePath returns where a firmware file is, compressed or not; "" when it is nowhere.
func (p *Plan) firmwarePath(name string) string {
	for _, dir := range []string{"/lib/firmware/updates/" + p.Release, "/lib/firmware/updates", "/lib/firmware/" + p.Release, "/lib/firmware"} {
		for _, suffix := range []string{"", ".xz", ".zst"} {
			path := filepath.Join(p.path(dir), filepath.FromSlash(name)+suffix)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	return ""
}

// firmwareOf returns the names in the firmware fields of a module's information, which are texts of
// the form key=value that end with a zero byte.
func firmwareOf(module []byte) []string {
	var names []string
	key := []byte("\x00firmware=")
	for {
		at := bytes.Index(module, key)
		if at < 0 {
			return names
		}
		module = module[at+len(key):]
		name, _, ok := bytes.Cut(module, []byte{0})
		if text := string(name); ok && len(name) < 256 && filepath.IsLocal(text) {
			names = append(names, text)
		}
		module = module[len(name):]
	}
}

// readFile reads a file, and decompresses it where its name says that it is compressed.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var reader io.Reader = file
	switch filepath.Ext(path) {
	case ".xz":
		reader, err = xz.NewReader(bufio.NewReader(file), 0)
	case ".zst":
		var decoder *zstd.Decoder
		if decoder, err = zstd.NewReader(file, zstd.WithDecoderConcurrency(1)); err == nil {
			defer decoder.Close()
			reader = decoder
		}
	case ".gz":
		reader, err = gzip.NewReader(file)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(reader, maxModule+1))
	if err == nil && len(data) > maxModule {
		err = fmt.Errorf("it is larger than %d bytes", maxModule)
	}
	return data, err
}
