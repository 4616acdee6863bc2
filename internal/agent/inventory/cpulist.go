package inventory

import (
	"slices"
	"strconv"
	"strings"
)

// maxThreads bounds the numbers of threads; Linux has 8192 at most.
const maxThreads = 1 << 16

// offline returns how many threads are present and offline, and lists them. The kernel's own list
// of those that are offline also has what could be plugged in and is not.
func (p *probe) offline() (count int32, list string) {
	present := p.list(cpuDir, "present")
	numbers := slices.DeleteFunc(p.list(cpuDir, "offline"), func(n int32) bool {
		_, found := slices.BinarySearch(present, n)
		return !found
	})
	return int32(len(numbers)), formatList(numbers)
}

// list returns the numbers that a file lists; none if it is not there.
func (p *probe) list(parts ...string) []int32 {
	data, err := p.read(64<<10, parts...)
	if err != nil {
		return nil
	}
	return parseList(string(data))
}

// parseList reads numbers and ranges in ascending order, such as 0-3,7 (cputopology.rst of
// the kernel's documentation). Whatever is no such list has no numbers.
func parseList(text string) []int32 {
	var numbers []int32
	next := int32(0)
	for item := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, isRange := strings.Cut(item, "-")
		first := parseInt32(from)
		last := first
		if isRange {
			last = parseInt32(to)
		}
		if first < next || last < first || last >= maxThreads {
			return nil
		}
		for next = first; next <= last; next++ {
			numbers = append(numbers, next)
		}
	}
	return numbers
}

// formatList writes ascending numbers as the kernel does. What is too long for the report ends in
// an ellipsis after a whole range.
func formatList(numbers []int32) string {
	const ellipsis = ",…"
	var out strings.Builder
	for i, first := range numbers {
		if i > 0 && numbers[i-1] == first-1 {
			continue // within a range
		}
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		item := strconv.Itoa(int(first))
		if last > i {
			item += "-" + strconv.Itoa(int(numbers[last]))
		}
		if i > 0 {
			item = "," + item
		}
		if out.Len()+len(item)+len(ellipsis) > maxText {
			out.WriteString(ellipsis)
			break
		}
		out.WriteString(item)
	}
	return out.String()
}
