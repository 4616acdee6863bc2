package install

import (
	"slices"
	"strings"
)

// networkPlaces are the directories and files of whatever makes the network. One that ends with a
// hyphen is the beginning of names.
var networkPlaces = []string{
	"/etc/netplan", "/etc/systemd/network", "/etc/NetworkManager/system-connections", "/etc/network/interfaces", "/etc/network/interfaces.d",
	"/etc/sysconfig/network-scripts/ifcfg-", "/etc/sysconfig/network/ifcfg-",
}

// keeps reports whether a word of a line is a command that makes no file, whatever it names.
func keeps(word string) bool { return word == "chmod" || word == "chown" || word == "rm" }

// ownNetwork returns the place of which user-data says, outside of comments, that it does something
// there: it may bring a network of its own. It returns "" where it names none. The key network of
// user-data does not count, nor does a file of cloud-init's own configuration: cloud-init has made
// the network before it reads, or writes, either.
func ownNetwork(userData []byte) string {
	for line := range strings.Lines(string(userData)) {
		line, _, _ = strings.Cut(" "+strings.ReplaceAll(line, "\t", " "), " #")
		for command := range strings.FieldsFuncSeq(line, func(r rune) bool { return strings.ContainsRune(";&|", r) }) {
			if place := networkPlace(command); place != "" {
				return place
			}
		}
	}
	return ""
}

// networkPlace returns the place that a command, or a line of a file, names.
func networkPlace(command string) string {
	words := strings.FieldsFunc(command, func(r rune) bool { return r <= ' ' || strings.ContainsRune("\"'`<>(),=[]{}", r) })
	if slices.ContainsFunc(words, keeps) && !strings.Contains(command, ">") {
		return ""
	}
	for _, word := range words {
		if strings.HasPrefix(word, "$") { // a directory in a variable
			word = word[max(0, strings.Index(word, "/")):]
		}
		is := func(place string) bool {
			rest, begins := strings.CutPrefix(word, place)
			return begins && (rest == "" || rest[0] == '/' || place[len(place)-1] == '-')
		}
		// A link file gives an interface its name, and no address.
		if i := slices.IndexFunc(networkPlaces, is); i >= 0 && !strings.HasSuffix(word, ".link") {
			return networkPlaces[i]
		}
	}
	return ""
}
