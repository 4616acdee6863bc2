package rehearsal

import (
	"cmp"
	"fmt"
	"strings"
)

// told is how the timeline tells an event: in words that need no knowledge of this package.
type told struct {
	// begins is the whole sentence. "{share}" stands for the share of what follows it.
	begins string
	// ends says that it is over; empty: the end is not told.
	ends string
	// asked is what a person asks for, in the event or after it.
	asked string
}

// tellings has every event but Crash and Pause, which are told when they happen: see controller.
var tellings = map[What]told{
	DatabaseOutage: {begins: "the database cannot be reached", ends: "the database can be reached again"},
	LostCommits: {
		begins: "the database fails {share} transactions, and nobody knows whether they were committed",
		ends:   "the database does not fail transactions any more",
	},
	ListenerDown: {begins: "the agent API of every control plane is down", ends: "the agent API of every control plane is up again"},
	AgentsCutOff: {begins: "no agent reaches a control plane", ends: "agents reach the control planes again"},

	LostReplies:    {begins: "providers do not answer {share} calls, which may have had their effect", ends: "providers answer again"},
	Throttled:      {begins: "providers refuse {share} calls, as too many", ends: "providers do not refuse calls any more"},
	ProviderOutage: {begins: "providers fail all calls", ends: "providers serve again"},
	StaleList:      {begins: "the lists of providers do not change any more", ends: "the lists of providers are as they should be again"},
	PartialList:    {begins: "the lists of providers leave most out", ends: "the lists of providers are whole again"},
	DoubleList:     {begins: "the lists of providers name things twice", ends: "the lists of providers name things once again"},
	CreateFails:    {begins: "providers give up {share} machines that they create", ends: "providers create machines again"},
	SlowRestarts:   {begins: "{share} restarts come late, or never", ends: "restarts come in time again"},
	Vanishes:       {begins: "a provider loses a machine", asked: "forgetting the machine that is lost"},
	Foreign:        {begins: "somebody makes a machine by hand", asked: "adopting the machine that was made by hand"},

	HostHangs:      {begins: "a machine hangs"},
	HostDies:       {begins: "a machine dies for good"},
	DiskLost:       {begins: "a machine loses what is on its disk"},
	AgentDies:      {begins: "the agent of a machine dies"},
	PowerLost:      {begins: "{share} machines are without power", ends: "the power is back: machines boot"},
	RackLost:       {begins: "the machines of one location are without power", ends: "the power is back: machines boot"},
	TenthFails:     {begins: "the agents of a tenth of the machines die, and half of these machines hang"},
	SSHRefused:     {begins: "{share} SSH connections fail", ends: "SSH connections do not fail any more"},
	InstallFails:   {begins: "{share} installs fail", ends: "installs do not fail any more"},
	AgentLies:      {begins: "agents that were replaced go on talking", ends: "agents that were replaced are silent"},
	HostKeyChanges: {begins: "a machine has another SSH host key, and its agent dies", asked: "accepting the new SSH host key"},

	AskInstall:    {asked: "an install"},
	AskReinstall:  {asked: "a reinstall"},
	AskCancel:     {asked: "calling off an install"},
	AskReboot:     {asked: "a reboot"},
	AskPowerCycle: {asked: "a power cycle"},
	AskPowerOff:   {asked: "switching a machine off"},
	AskPowerOn:    {asked: "switching a machine on"},
	AskRelease:    {asked: "a release"},
	AskReplace:    {asked: "a replacement"},
	AskQuarantine: {asked: "a quarantine"},
	AskUnquarant:  {asked: "the end of a quarantine"},
	AskMaintain:   {asked: "a maintenance"},
	AskMaintained: {asked: "the end of a maintenance"},
	AskWithdraw:   {asked: "calling off what was asked for"},
	AskPause:      {begins: "a person pauses every provider", asked: "a pause"},
	AskDeploy:     {begins: "an operating system is asked for on {share} machines"},
}

// told says that an event begins; "" where that is not told.
func (e Event) told() string {
	t, there := tellings[e.What]
	if !there {
		return ""
	}
	share := "all"
	if e.Share < 100 {
		share = fmt.Sprintf("%d %% of the", e.Share)
	}
	text := strings.ReplaceAll(cmp.Or(t.begins, t.asked+" is asked for"), "{share}", share)
	if e.For > 0 && t.ends != "" {
		text += fmt.Sprintf(", for %s", e.For)
	}
	return text
}

// tell notes what there is to be told.
func (w *world) tell(text string) {
	if text != "" {
		w.note("%s", text)
	}
}

// restartWords is how the timeline tells why a machine restarts.
var restartWords = map[string]string{
	"installed": "restarts into what was installed", "reboot": "is rebooted", "power-cycle": "is power-cycled", "power-on": "is switched on",
	"reinstall": "is reinstalled by its provider, which destroys what is on its disk",
}
