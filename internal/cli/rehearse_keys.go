package cli

import (
	"reflect"
	"slices"
	"strings"

	"github.com/ironherd/ironherd/internal/config"
)

// takenOver is whether a rehearsal does what a key of the configuration says.
type takenOver int

const (
	taken   takenOver = iota // it does
	left                     // it does not, which is told where the key is not at its default
	aside                    // a simulated world has no use for it: where something is, who may call
	unnamed                  // nobody has said
)

// rehearsedKeys says it of each key, or of the section that the key is in.
var rehearsedKeys = map[string]takenOver{
	"dir": aside, "log": aside, "database": aside, "operator_api": aside, "ssh": aside, "images": taken, "policy": taken,
	"roles": left, "drain_timeout": left, "session": taken, "loops": taken, "recoverer": taken, "operations": taken,
	"janitor.interval": taken, "janitor.batch": taken, "janitor": left,

	"agent_api.listen": aside, "agent_api.endpoint": aside, "agent_api.tls": aside, "agent_api": left,

	"initializer.provider_backoff": taken, "initializer.start_backoff": taken, "initializer.id_backoff": taken,
	"initializer.contact_limit": left, "initializer.work_timeout": left, "initializer.connect_timeout": left,
	"initializer.first_silence": left, "initializer.step_timeout": left, "initializer.execute_timeout": left, "initializer": aside,

	"prober.backoff": taken, "prober": left,

	"providers.name": taken, "providers.kind": taken, "providers.trust_first_use": left, "providers.takeover": left,
	"providers.equinix.spacing": taken, "providers.equinix.page_size": taken, "providers.equinix.in_flight": taken, "providers.equinix": aside,
	"providers.static.spacing": left, "providers.static.in_flight": left, "providers.static": aside,
	"providers.provisioner.create_parallelism": left, "providers.provisioner": taken, "providers.updater": taken,

	"providers.install.kexec": left, "providers.install.first_boot_data_file": aside, "providers.install.seen_up_ca_file": aside,
	"providers.install.root_disk": taken, "providers.install": taken,
}

// howRehearsed looks a key up.
func howRehearsed(key string) takenOver {
	for key != "" {
		if how, there := rehearsedKeys[key]; there {
			return how
		}
		key = key[:max(strings.LastIndexByte(key, '.'), 0)]
	}
	return unnamed
}

// notRehearsed lists the keys that are not at their default and that a rehearsal leaves out.
func notRehearsed(c config.Config) (keys []string) {
	add := func(key string, isDefault bool) {
		if !isDefault && howRehearsed(key) == left {
			keys = append(keys, key)
		}
	}
	eachKey("", reflect.ValueOf(c), reflect.ValueOf(config.Default()), add)
	for _, p := range c.Providers {
		eachKey("providers", reflect.ValueOf(p), reflect.ValueOf(config.NewProvider(p.Name, p.Kind)), add)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// eachKey calls do with each key of a section, and whether its value is the default. Those of
// providers are looked at one by one.
func eachKey(section string, of, defaults reflect.Value, do func(key string, isDefault bool)) {
	for i := range of.NumField() {
		f := of.Type().Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		key := strings.TrimPrefix(section+"."+name, ".")
		value, other := of.Field(i), defaults.Field(i)
		if value.Kind() == reflect.Pointer && !value.IsNil() {
			value, other = value.Elem(), reflect.Zero(value.Type().Elem())
		}
		switch {
		case name == "-" || !f.IsExported() || key == "providers":
		case options == "inline":
			eachKey(section, value, other, do)
		case value.Kind() == reflect.Struct && ownKeys(value.Type()):
			eachKey(key, value, other, do)
		default:
			do(key, reflect.DeepEqual(value.Interface(), other.Interface()))
		}
	}
}

// ownKeys reports whether the fields of a section have keys by their tags.
func ownKeys(t reflect.Type) bool {
	_, tagged := t.Field(0).Tag.Lookup("yaml")
	return tagged
}
