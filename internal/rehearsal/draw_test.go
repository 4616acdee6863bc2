package rehearsal

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
)

// Draw makes the plan of a seed, for tests: small, and with every fault mixed.
func Draw(seed uint64) Plan {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	p := Plan{
		Seed: seed, Machines: 3 + r.IntN(8), Controllers: 1 + r.IntN(2), Length: time.Duration(14+r.IntN(14)) * time.Minute,
		Settle: 150 * time.Minute, Install: r.IntN(3) == 0,
	}
	if seed%100 == 49 { // now and then a larger one
		p.Machines, p.Controllers = 30+r.IntN(90), 1+r.IntN(3)
	}
	for range 2 + r.IntN(8) {
		p.Events = append(p.Events, drawFault(r, p)...)
	}
	for range r.IntN(6) {
		p.Events = append(p.Events, drawRequest(r, p))
	}
	if seed%5 == 4 { // after all others, whose draws it leaves alone
		p.Events = append(p.Events, Event{What: SlowRestarts, For: p.Length, Share: 30 + r.IntN(70)})
	}
	if seed%7 == 3 {
		p.Events = append(p.Events, Event{
			What: RackLost, At: time.Duration(r.IntN(600)) * time.Second, For: time.Duration(30+r.IntN(900)) * time.Second, Target: r.IntN(racks),
		})
	}
	if seed%8/2 == 2 {
		for range 1 + r.IntN(5) {
			p.Events = append(p.Events, drawByHand(r, p)...)
		}
	}
	if seed%11 == 5 {
		p.Events = append(p.Events, Event{
			What: AgentsCutOff, At: time.Duration(r.Int64N(int64(p.Length/time.Second))) * time.Second, For: time.Duration(60+r.IntN(1140)) * time.Second,
		})
	}
	p.sort()
	return p
}

func (p *Plan) sort() {
	slices.SortStableFunc(p.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
}

func drawFault(r *rand.Rand, p Plan) []Event {
	seconds := func(from, to int) time.Duration { return time.Duration(from+r.IntN(to-from)) * time.Second }
	when := r.Float64() // more at the beginning, where machines are made
	e := Event{At: time.Duration(when * when * float64(p.Length)).Truncate(time.Second)}
	switch r.IntN(26) {
	case 0, 1:
		e.What, e.Target, e.Step, e.For = Crash, r.IntN(p.Controllers), r.IntN(30), seconds(1, 200)
	case 2, 3:
		e.What, e.Target, e.Step, e.For = Pause, r.IntN(p.Controllers), r.IntN(30), seconds(10, 300)
	case 4, 5, 24, 25:
		return drawInAct(r, p)
	case 6:
		e.What, e.For = DatabaseOutage, seconds(5, 150)
	case 7, 8:
		e.What, e.For, e.Share = LostCommits, seconds(30, 600), 5+r.IntN(40)
	case 9:
		e.What, e.For = ListenerDown, seconds(60, 1200)
	case 10, 11:
		e.What, e.For, e.Share = LostReplies, seconds(60, 900), 10+r.IntN(60)
	case 12:
		e.What, e.For, e.Share = Throttled, seconds(60, 900), 20+r.IntN(80)
	case 13:
		e.What, e.For = ProviderOutage, seconds(60, 900)
	case 14:
		e.What, e.For = StaleList, seconds(30, 300)
	case 15:
		e.What, e.For = []What{PartialList, DoubleList}[r.IntN(2)], seconds(60, 400)
	case 16:
		e.What, e.For, e.Share = CreateFails, seconds(60, 600), 30
	case 17:
		e.What, e.Target = []What{HostHangs, HostHangs, HostDies, DiskLost}[r.IntN(4)], r.IntN(p.Machines)
	case 18:
		e.What, e.Target = []What{HostHangs, AgentDies, AgentDies}[r.IntN(3)], r.IntN(p.Machines)
	case 19:
		e.What, e.For, e.Share = PowerLost, seconds(30, 900), 20+r.IntN(80)
	case 20, 21:
		e.What, e.For, e.Share = SSHRefused, seconds(60, 900), 20+r.IntN(60)
	case 22:
		e.What, e.For, e.Share = InstallFails, seconds(300, 1200), 30+r.IntN(70)
	default:
		e.What, e.Target, e.For = AgentLies, r.IntN(p.Machines), seconds(60, 900)
	}
	return []Event{e}
}

// drawInAct draws a controller that dies, or stands still, in the middle of some work, and what
// gives that work to do.
func drawInAct(r *rand.Rand, p Plan) []Event {
	e := Event{
		What: []What{Crash, Pause, Pause}[r.IntN(3)], For: time.Duration(100+r.IntN(250)) * time.Second, Step: 1 + r.IntN(8),
		Target: r.IntN(p.Controllers), At: time.Duration(r.IntN(200)) * time.Second,
		In: []fleet.Process{fleet.ProcessProvision, fleet.ProcessAgentStart, fleet.ProcessOperation, fleet.ProcessRecovery, fleet.ProcessRecovery}[r.IntN(5)],
	}
	cause := Event{At: 7*time.Minute + time.Duration(r.IntN(240))*time.Second, Target: r.IntN(p.Machines)}
	switch e.In {
	case fleet.ProcessOperation:
		cause.What = []What{AskReboot, AskPowerCycle, AskReplace, AskRelease}[r.IntN(4)]
	case fleet.ProcessRecovery:
		cause.What = HostHangs
	default:
		return []Event{e}
	}
	e.At = cause.At
	lost := Event{What: LostReplies, At: cause.At, For: 5 * time.Minute, Share: 50}
	if r.IntN(2) == 0 {
		return []Event{e, cause, lost}
	}
	return []Event{e, cause}
}

func drawRequest(r *rand.Rand, p Plan) Event {
	// Machines take some minutes to be there.
	e := Event{At: 5*time.Minute + time.Duration(r.Int64N(int64((p.Length-5*time.Minute)/time.Second)))*time.Second, Target: r.IntN(p.Machines)}
	e.What = []What{
		AskInstall, AskInstall, AskInstall, AskReinstall, AskCancel, AskReboot, AskReboot, AskPowerCycle, AskRelease, AskReplace, AskReplace,
		AskQuarantine, AskUnquarant, AskMaintain, AskPowerOff, AskPowerOn, AskDeploy,
	}[r.IntN(17)]
	switch e.What {
	case AskMaintain:
		e.For = time.Duration(1+r.IntN(15)) * time.Minute
	case AskDeploy:
		e.Share = 30 + r.IntN(70)
	}
	return e
}

// drawByHand draws what people do beside us, and what they take back.
func drawByHand(r *rand.Rand, p Plan) []Event {
	e := Event{
		At: time.Duration(r.Int64N(int64(p.Length/time.Second))) * time.Second, For: time.Duration(30+r.IntN(900)) * time.Second, Target: r.IntN(p.Machines),
	}
	e.What = []What{
		AskPause, AskPause, AskMaintained, AskWithdraw, AskWithdraw, HostKeyChanges, HostKeyChanges, HostKeyChanges, Vanishes, Vanishes, Foreign, Foreign,
	}[r.IntN(12)]
	first := e
	switch e.What {
	case AskMaintained:
		first.What, first.For = AskMaintain, 20*time.Minute
	case AskWithdraw:
		first.What, first.For = []What{AskReboot, AskPowerCycle, AskRelease, AskReplace}[r.IntN(4)], 0
	case Foreign: // before we have made one there
		e.At = time.Duration(r.IntN(60)) * time.Second
		return []Event{e}
	default:
		return []Event{e}
	}
	e.At, e.For = min(e.At+time.Duration(1+r.IntN(120))*time.Second, p.Length), 0
	return []Event{first, e}
}

// ParsePlan reads what String has written. The error is of kind Invalid.
func ParsePlan(text string) (p Plan, err error) {
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return Plan{}, fleet.Errorf(fleet.KindInvalid, "the plan cannot be read: %w", err)
	}
	return p, p.Validate()
}
