// Package inventory records which objects we have created. Only what is recorded here is ever
// deleted.
//
// # The protocol
//
//	      1 record            2 create             3 record the UID           4 delete
//	nothing ────► entry with ────────► object with ───────────► entry with ────────► no object,
//	              a mark               that mark                the UID              no entry
//
// The four steps of the leader:
//
//  1. Before it creates an object, it writes an entry with a fresh random mark.
//  2. It creates the object by a request that carries the mark, and that the server refuses if
//     there is an object of that name. No other request ever carries that mark to an object that
//     does not have it.
//  3. When it sees the object with the mark of its entry (in the answer, or later, whoever leads
//     then), it writes the UID into the entry. The mark has done its work.
//  4. When the object is no longer wanted, it deletes the object under a precondition of its UID,
//     and removes the entry when the object is gone.
//
// An object is ours if its UID is that of its entry, or if it bears the mark of an entry without a
// UID. Nothing else makes it ours: no label, no name, no field manager. So we never delete what
// somebody else created, or created again after ours was gone, whatever it looks like.
//
// # Failures
//
//   - Death after 1: an entry without an object. A later creation of the same object uses the same
//     mark. If it is no longer wanted the entry is kept for Settle, for the request may still be
//     under way, and then forgotten.
//   - Death after 2, or the answer is lost: the object bears the mark; 3 is done by whoever comes
//     next.
//   - Death while an object is replaced (deleted and created again): its entry says so by a word of
//     its own, beside a mark and the UID of the one before. If that is gone, whoever leads next
//     creates the object, whatever is paused. The word is taken back when the deletion is refused,
//     and when the object is there although the deletion can arrive no more. A mark and a UID
//     alone prove nothing: releases before the word left them of an object that others had
//     deleted, too.
//   - Death within 4: the object is deleted again, which is no error, or is found gone.
//   - Two leaders (one of them deposed): each part of the inventory is written only under a
//     precondition of the resourceVersion that was read, so the late one is refused where its
//     successor has written, and can create nothing that it had not recorded before. What it had
//     recorded, its successor reads: before the first pass, or when it sees that a part has
//     changed.
//   - The inventory is lost: everything goes on being applied; what it spoke of is never deleted
//     again. While its writer lives, it writes it again.
//
// # Why ConfigMaps
//
// They are backed up and restored together with the objects that they speak of; people can read
// them; a precondition on the resourceVersion is all the fencing that is needed. A key per kind, a
// line per object: "namespace/name uid=… mark=… at=… need=…". Lines that cannot be read are
// reported, and kept as they are. A line without a need is taken for one of an object of a
// manifest, which the rules about deletions protect; the next pass that wants the object corrects
// it.
//
// The word of an object that is being replaced is "mark=replacing", before the mark itself. To
// releases that do not know it, a line with a word of another name is one that cannot be read; of
// two marks they take the last one, and write that alone.
//
// One ConfigMap holds some ten thousand objects, so the inventory has parts: 1, 2, 4 … maxParts
// ConfigMaps. Each object has its place in one of them, by a hash of its name. When a part would
// grow beyond partSize, the number of parts doubles. An object then stays where it is, or moves to
// a part with a higher number. Parts with higher numbers are written first, so at every moment each
// entry is in one part at least. If it is in two, because the writer died in between, the one in
// its place counts.
package inventory

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/reconciler/resources/object"
)

// Where the inventory is: its first part has the name, the others have it with their number behind.
const (
	Namespace = "kube-system"
	Name      = "ironherd-reconciler-inventory"
)

// PartName is the name of a part.
func PartName(part int) string {
	if part == 0 {
		return Name
	}
	return Name + "-" + strconv.Itoa(part)
}

// IsPart reports whether an object is a part of the inventory, or may become one.
func IsPart(key object.Key) bool {
	if key.Group != "" || key.Kind != "ConfigMap" || key.Namespace != Namespace {
		return false
	}
	return slices.ContainsFunc(partNames, func(name string) bool { return name == key.Name })
}

var partNames = func() (names []string) {
	for part := range maxParts {
		names = append(names, PartName(part))
	}
	return names
}()

// Settle is how long an entry without an object is kept when the object is no longer wanted: longer
// than any request may take to arrive.
const Settle = 10 * time.Minute

// Entry is what is known of one object.
type Entry struct {
	// UID of the object that we created; empty while none has been seen.
	UID string
	// Mark that the request that creates the object carries; empty when there is no such request.
	Mark string
	// At is when the mark was recorded, or some minutes at most before it was used again, by the clock
	// of who did.
	At time.Time
	// Replacing tells that we have deleted the object of the UID, or are about to, and create it again
	// with the mark.
	Replacing bool
	// Need is that of the release which wants the object, or wanted it last. Annotations on the live
	// object say the same; anybody can write those.
	Need object.Need
}

// replacing is how a line says so. A mark is never like that: it has capital letters and digits.
const replacing = "mark=replacing"

// Ours reports whether a live object is the one that we created.
func (e Entry) Ours(uid, mark string) bool {
	return e.UID != "" && e.UID == uid || e.Mark != "" && e.Mark == mark
}

// Inventory is the entries by object. Its zero value is not useful.
type Inventory struct {
	Entries map[object.Key]Entry
	// unreadable lines, by where they are.
	unreadable map[place][]string
}

// place is a key of the data of a part.
type place struct {
	part int
	kind string
}

// New is an inventory without entries.
func New() *Inventory {
	return &Inventory{Entries: map[object.Key]Entry{}, unreadable: map[place][]string{}}
}

// Clone returns a copy.
func (i *Inventory) Clone() *Inventory {
	return &Inventory{Entries: maps.Clone(i.Entries), unreadable: maps.Clone(i.unreadable)}
}

// Equal reports whether both say the same.
func (i *Inventory) Equal(j *Inventory) bool {
	return maps.Equal(i.Entries, j.Entries) && maps.EqualFunc(i.unreadable, j.unreadable, slices.Equal)
}

// Parse reads the data of the parts. An error names each line that cannot be read; the inventory is
// good all the same, and keeps them.
func Parse(parts []map[string]string) (*Inventory, error) {
	i := New()
	var faults []error
	from := map[object.Key]int{}
	for part, data := range parts {
		for _, kind := range slices.Sorted(maps.Keys(data)) {
			for n, line := range strings.Split(data[kind], "\n") {
				if line == "" {
					continue
				}
				key, entry, err := parseLine(kind, line)
				other, twice := from[key]
				if err == nil && twice && other == part {
					err = errors.New("it is there twice")
				}
				if err != nil {
					faults = append(faults, fmt.Errorf("%s, %s, line %d: %w", PartName(part), kind, n+1, err))
					at := place{part, kind}
					i.unreadable[at] = append(i.unreadable[at], line)
					continue
				}
				if !twice || part == partOf(key, len(parts)) {
					i.Entries[key], from[key] = entry, part
				}
			}
		}
	}
	return i, errors.Join(faults...)
}

// partOf is the number of the part in which an object has its place.
func partOf(key object.Key, parts int) int {
	sum := fnv.New32a()
	_, _ = fmt.Fprintf(sum, "%s/%s/%s/%s", key.Group, key.Kind, key.Namespace, key.Name)
	return int(sum.Sum32() & uint32(parts-1)) //nolint:gosec // parts is a small power of two
}

// parseLine reads "namespace/name uid=… mark=replacing mark=… at=… need=…".
func parseLine(kind, line string) (key object.Key, e Entry, err error) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return key, e, errors.New("it has too few words")
	}
	name, group, _ := strings.Cut(kind, ".")
	namespace, rest, ok := strings.Cut(words[0], "/")
	if !ok || rest == "" || name == "" || strings.Contains(rest, "/") {
		return key, e, fmt.Errorf("%q names no object", words[0])
	}
	key = object.Key{Group: group, Kind: name, Namespace: namespace, Name: rest}
	for _, word := range words[1:] {
		if word == replacing {
			e.Replacing = true
			continue
		}
		field, value, _ := strings.Cut(word, "=")
		switch field {
		case "uid":
			e.UID = value
		case "mark":
			e.Mark = value
		case "at":
			seconds, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return key, e, fmt.Errorf("%q is no time", word)
			}
			e.At = time.Unix(seconds, 0)
		case "need":
			e.Need = object.Need(value)
			if e.Need != object.Optional && e.Need != object.Required {
				return key, e, fmt.Errorf("%q is no need", word)
			}
		default:
			return key, e, fmt.Errorf("%q is not known here", word)
		}
	}
	if e.UID == "" && e.Mark == "" {
		return key, e, errors.New("it has neither UID nor mark")
	}
	if e.Mark == "" {
		e.At = time.Time{}
	}
	e.Replacing = e.Replacing && e.UID != "" && e.Mark != ""
	return key, e, nil
}

// Data is what Parse reads, in a number of parts. The number is a power of two.
func (i *Inventory) Data(parts int) []map[string]string {
	lines := map[place][]string{}
	for key, e := range i.Entries {
		words := []string{key.Namespace + "/" + key.Name}
		if e.UID != "" {
			words = append(words, "uid="+e.UID)
		}
		if e.Replacing {
			words = append(words, replacing)
		}
		if e.Mark != "" {
			words = append(words, "mark="+e.Mark, "at="+strconv.FormatInt(e.At.Unix(), 10))
		}
		if e.Need != object.Nobody {
			words = append(words, "need="+string(e.Need))
		}
		kind := key.Kind
		if key.Group != "" {
			kind += "." + key.Group
		}
		at := place{partOf(key, parts), kind}
		lines[at] = append(lines[at], strings.Join(words, " "))
	}
	for _, l := range lines {
		slices.Sort(l)
	}
	// after the entries, because of two lines for one object the first counts
	for at, unreadable := range i.unreadable {
		lines[at] = append(lines[at], unreadable...)
	}
	data := make([]map[string]string, parts)
	for n := range data {
		data[n] = map[string]string{}
	}
	for at, l := range lines {
		data[at.part][at.kind] = strings.Join(l, "\n") + "\n"
	}
	return data
}
