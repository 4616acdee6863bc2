// Package metricstest writes what the reference says of the metrics of a program, from what the
// program registers. It is for tests, which hold the pages in docs/reference to it.
package metricstest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metric is one metric as it is registered.
type Metric struct {
	Name, Help string
	// Type is counter, gauge or histogram; "" for one without a value so far.
	Type   string
	Labels []string
	// Values are those that a label has so far.
	Values map[string][]string
}

// Label says which values a label can have: these alone, or others in words.
type Label struct {
	Values []string
	Words  string
}

// Labels has the labels of a program by their names. Where a label means something else in a
// metric, it is named METRIC{LABEL}.
type Labels map[string]Label

// of returns the name under which the label of a metric is found.
func (l Labels) of(metric, label string) string {
	if own := metric + "{" + label + "}"; l.has(own) {
		return own
	}
	return label
}

func (l Labels) has(name string) bool {
	_, ok := l[name]
	return ok
}

// Of returns the values of a metric's label; nil where others than these are possible.
func (l Labels) Of(metric, label string) []string { return l[l.of(metric, label)].Values }

// describes are the parts of a description as it prints itself.
var (
	describes = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{(.*)\}, variableLabels: \{(.*)\}\}$`)
	constant  = regexp.MustCompile(`(\w+)="`)
)

// Of returns the metrics that a registry has below a namespace, by name.
func Of(registry *prometheus.Registry, namespace string) ([]Metric, error) {
	found := make(map[string]*Metric)
	all := make(chan *prometheus.Desc, 1000)
	registry.Describe(all)
	close(all)
	for desc := range all {
		parts := describes.FindStringSubmatch(desc.String())
		if parts == nil {
			return nil, fmt.Errorf("a description is unlike what is expected: %s", desc)
		}
		name, err := strconv.Unquote(parts[1])
		if err != nil || !strings.HasPrefix(name, namespace+"_") {
			continue
		}
		help, err := strconv.Unquote(parts[2])
		if err != nil {
			return nil, err
		}
		var labels []string
		for _, c := range constant.FindAllStringSubmatch(parts[3], -1) {
			labels = append(labels, c[1])
		}
		if parts[4] != "" {
			labels = append(labels, strings.Split(parts[4], ",")...)
		}
		found[name] = &Metric{Name: name, Help: help, Labels: labels, Values: make(map[string][]string)}
	}
	families, err := registry.Gather()
	if err != nil {
		return nil, err
	}
	for _, family := range families {
		m := found[family.GetName()]
		if m == nil {
			continue
		}
		m.Type = strings.ToLower(family.GetType().String())
		for _, series := range family.GetMetric() {
			for _, pair := range series.GetLabel() {
				m.Values[pair.GetName()] = append(m.Values[pair.GetName()], pair.GetValue())
			}
		}
	}
	var metrics []Metric
	for _, name := range slices.Sorted(maps.Keys(found)) {
		metrics = append(metrics, *found[name])
	}
	return metrics, nil
}

// Faults says what the labels lack, or have too much, beside the metrics.
func (l Labels) Faults(metrics []Metric) (faults []string) {
	used := make(map[string]bool)
	for _, m := range metrics {
		for _, label := range m.Labels {
			name := l.of(m.Name, label)
			used[name] = true
			if !l.has(name) {
				faults = append(faults, fmt.Sprintf("nobody says which values %s{%s} has", m.Name, label))
				continue
			}
			for _, value := range m.Values[label] {
				if known := l[name].Values; known != nil && !slices.Contains(known, value) {
					faults = append(faults, fmt.Sprintf("%s{%s} is %q, which is none of %q", m.Name, label, value, known))
				}
			}
		}
	}
	for name := range l {
		if !used[name] {
			faults = append(faults, "no metric has the label "+name)
		}
	}
	slices.Sort(faults)
	return faults
}

// Table returns a table of metrics.
func Table(metrics []Metric) string {
	var rows strings.Builder
	rows.WriteString("| metric | type | unit | labels | meaning |\n|---|---|---|---|---|\n")
	for _, m := range metrics {
		var labels []string
		for _, label := range m.Labels {
			labels = append(labels, "`"+label+"`")
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s |\n", m.Name, m.Type, m.unit(), strings.Join(labels, ", "), strings.ReplaceAll(m.Help, "|", "\\|"))
	}
	return rows.String()
}

// unit returns in what a metric is counted, as its name and its help say.
func (m Metric) unit() string {
	switch {
	case strings.HasSuffix(m.Name, "_timestamp_seconds"):
		return "seconds since 1970"
	case strings.HasSuffix(m.Name, "_seconds"):
		return "seconds"
	case strings.HasPrefix(m.Help, "Whether "):
		return "0 or 1"
	case strings.HasSuffix(m.Name, "_info"):
		return "1"
	}
	return "number"
}

// Table returns a table of the values that the labels can have.
func (l Labels) Table() string {
	var rows strings.Builder
	rows.WriteString("| label | values |\n|---|---|\n")
	byLabel := func(a, b string) int {
		_, ofA := split(a)
		_, ofB := split(b)
		return cmp.Or(cmp.Compare(ofA, ofB), cmp.Compare(a, b))
	}
	for _, name := range slices.SortedFunc(maps.Keys(l), byLabel) {
		var values []string
		for _, value := range l[name].Values {
			values = append(values, "`"+value+"`")
		}
		text := strings.Join(values, ", ")
		if words := l[name].Words; words != "" {
			text = strings.TrimPrefix(text+": "+words, ": ")
		}
		if metric, label := split(name); metric != "" {
			fmt.Fprintf(&rows, "| `%s` of `%s` | %s |\n", label, metric, text)
		} else {
			fmt.Fprintf(&rows, "| `%s` | %s |\n", name, text)
		}
	}
	return rows.String()
}

// Current compares the page of a reference with its file, or writes it there. The error names what
// makes it anew: go generate of a package.
func Current(file, page string, write bool, of string) error {
	if write {
		return os.WriteFile(file, []byte(page), 0o644)
	}
	have, err := os.ReadFile(file)
	if err == nil && string(have) != page {
		err = errors.New("it is not what the source says")
	}
	if err != nil {
		return fmt.Errorf("%s: %w: run `go generate %s`", file, err, of)
	}
	return nil
}

// split returns the label of a name, and the metric where it has one of its own.
func split(name string) (metric, label string) {
	metric, label, own := strings.Cut(strings.TrimSuffix(name, "}"), "{")
	if !own {
		return "", name
	}
	return metric, label
}
