package sim

import (
	"sync/atomic"
	"time"

	"github.com/ironherd/ironherd/internal/sim/fault"
)

// Status is what is in a world, and what has happened in it since it was created, kills included.
// Fields that say so count from the last Open. Fault counts may lack the opportunities between the
// last fault and a kill.
type Status struct {
	Reservations int `json:"reservations"`
	// Devices that exist, and how many are in each state of the API.
	Devices      int            `json:"devices"`
	DeviceStates map[string]int `json:"device_states"`
	DevicesMade  int            `json:"devices_made"`
	// DevicesFailed counts the devices whose provisioning failed.
	DevicesFailed int `json:"devices_failed"`
	// DuplicateTags are the tags with a UUID at their end, so meant for one device, that several
	// devices have; DuplicateDevices counts the devices beyond the first.
	DuplicateDevices int      `json:"duplicate_devices"`
	DuplicateTags    []string `json:"duplicate_tags,omitempty"`
	// HostStates counts the machines by state: off, booting, provider (its operating system runs),
	// rescue, installed, dead.
	HostStates map[string]int `json:"host_states"`
	Boots      int            `json:"boots"`
	// InstallsVerified counts the boots of a newly installed system whose disk held the image that it
	// is said to be; InstallsRejected those whose disk did not.
	InstallsVerified int `json:"installs_verified"`
	InstallsRejected int `json:"installs_rejected"`
	// InstalledMoreThanOnce counts the devices on which more than one install was verified.
	InstalledMoreThanOnce int `json:"installed_more_than_once"`
	// UpAcknowledged counts the installed systems whose report that they are up was acknowledged.
	UpAcknowledged int `json:"up_acknowledged"`
	// AgentsRunning counts the machines on which an agent runs.
	AgentsRunning int `json:"agents_running"`
	// AgentStarts counts the executions of an uploaded agent to take its machine over. It and the
	// fields below count since the world was opened.
	AgentStarts int64         `json:"agent_starts"`
	Connections int64         `json:"ssh_connections"`
	Uploads     int64         `json:"uploads"`
	UploadBytes int64         `json:"upload_bytes"`
	Faults      []fault.Count `json:"faults"`
}

// stats are the counts that neither the journal nor the provider keeps.
type stats struct {
	agentStarts, connections, uploads, uploadBytes atomic.Int64
}

// past sums up the machines that were removed.
type past struct {
	Boots                 int `json:"boots"`
	Verified              int `json:"verified"`
	Rejected              int `json:"rejected"`
	InstalledMoreThanOnce int `json:"installed_more_than_once"`
}

func (p *past) add(r hostRecord) {
	p.Boots += r.Boots
	p.Verified += r.Verified
	p.Rejected += r.Rejected
	if r.Verified > 1 {
		p.InstalledMoreThanOnce++
	}
}

// observer is the world as an observer of its SSH servers: it counts, and injects faults.
type observer World

// Connection counts a connection and decides which fault happens to it.
func (o *observer) Connection() (refuse bool, drop time.Duration) {
	w := (*World)(o)
	w.stats.connections.Add(1)
	if _, ok := w.faults.Fire(fault.SSHRefused); ok {
		return true, 0
	}
	if shot, ok := w.faults.Fire(fault.SSHDropped); ok {
		return false, shot.Duration
	}
	return false, 0
}

// Uploaded counts an upload.
func (o *observer) Uploaded(bytes int64) {
	o.stats.uploads.Add(1)
	o.stats.uploadBytes.Add(bytes)
}

// Status says what is in the world and what has happened in it. The same is served as JSON at
// /sim/v1/status.
func (w *World) Status() Status {
	devices := w.api.Summary()
	w.mu.Lock()
	total := w.past
	hosts := make([]*host, 0, len(w.hosts))
	for _, h := range w.hosts {
		hosts = append(hosts, h)
	}
	w.mu.Unlock()
	s := Status{
		Reservations: w.self.Machines, DeviceStates: devices.States, DevicesMade: devices.Made, DevicesFailed: devices.Failed,
		DuplicateDevices: devices.Duplicates, DuplicateTags: devices.DuplicateTags, HostStates: map[string]int{}, Faults: w.faults.Counts(),
		AgentStarts: w.stats.agentStarts.Load(), Connections: w.stats.connections.Load(), Uploads: w.stats.uploads.Load(),
		UploadBytes: w.stats.uploadBytes.Load(),
	}
	for _, n := range devices.States {
		s.Devices += n
	}
	for _, h := range hosts {
		r := h.snapshot()
		total.add(r)
		s.HostStates[r.state()]++
		if r.Agent != "" {
			s.AgentsRunning++
		}
		if r.Installed != nil && r.Installed.Acknowledged {
			s.UpAcknowledged++
		}
	}
	s.Boots, s.InstallsVerified, s.InstallsRejected = total.Boots, total.Verified, total.Rejected
	s.InstalledMoreThanOnce = total.InstalledMoreThanOnce
	return s
}

// state is what a machine is, in one word.
func (r *hostRecord) state() string {
	switch {
	case !r.On:
		return "off"
	case r.System == systemBooting:
		return "booting"
	}
	return r.System
}
