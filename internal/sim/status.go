package sim

import "github.com/ironherd/ironherd/internal/sim/fault"

// Status is what is in a world and what has happened in it, since it was made (faults: since then too, to within the last firing
// before a kill).
type Status struct {
	Reservations int `json:"reservations"`
	// Devices that exist, and how many are in each state of the API.
	Devices       int            `json:"devices"`
	DeviceStates  map[string]int `json:"device_states"`
	DevicesMade   int            `json:"devices_made"`
	DevicesFailed int            `json:"devices_failed"`
	// DuplicateDevices counts the devices that share a creation tag with an older device; names in DuplicateTags.
	DuplicateDevices int      `json:"duplicate_devices"`
	DuplicateTags    []string `json:"duplicate_tags,omitempty"`
	// HostStates counts the machines by what they are: off, booting, up, installed, dead.
	HostStates map[string]int `json:"host_states"`
	Boots      int            `json:"boots"`
	// InstallsVerified counts the boots of a newly installed system whose disk held the image that it is said to be;
	// InstallsRejected those whose disk did not.
	InstallsVerified int `json:"installs_verified"`
	InstallsRejected int `json:"installs_rejected"`
	// InstalledMoreThanOnce counts the devices on which more than one install was verified.
	InstalledMoreThanOnce int `json:"installed_more_than_once"`
	// UpAcknowledged counts the installed systems that have said that they are up, and were heard.
	UpAcknowledged int `json:"up_acknowledged"`
	// AgentStarts counts the executions of an uploaded agent, AgentsRunning those that are at work now.
	AgentStarts   int           `json:"agent_starts"`
	AgentsRunning int           `json:"agents_running"`
	Connections   int           `json:"ssh_connections"`
	Uploads       int           `json:"uploads"`
	UploadBytes   int64         `json:"upload_bytes"`
	Faults        []fault.Count `json:"faults"`
}
