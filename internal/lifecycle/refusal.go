package lifecycle

import (
	"fmt"

	"github.com/ironherd/ironherd/internal/fleet"
)

// installRefused reports whether the agent refused the newest request, because the disk holds an
// install of this machine that is not older. Trying again does not change that.
func (c judgement) installRefused() bool {
	rep := c.reportOfWanted()
	return rep != nil && !rep.OK && rep.HeldGeneration != 0
}

// needsErase reports whether the agent refused the newest request, because the disk holds something
// that the request does not allow to be erased. It looks again, since a person may empty the disk.
func (c judgement) needsErase() bool {
	rep := c.reportOfWanted()
	return rep != nil && !rep.OK && rep.NeedsErase && !c.attemptOpen()
}

// notUnderstood reports whether the agent in charge refused the newest request, because it does not
// know all that the request asks for. Trying again does not change that, but another agent may.
func (c judgement) notUnderstood() bool {
	rep, s := c.reportOfWanted(), c.agent()
	return rep != nil && !rep.OK && rep.NotUnderstood && s != nil && !s.At.After(rep.At) && !c.attemptOpen()
}

// NotUnderstood reports whether the agent in charge refused the newest request, because it does not
// know all that the request asks for.
func NotUnderstood(r fleet.Record) bool { return judgement{r: r}.notUnderstood() }

// reportOfWanted is the report of an attempt at the install that is wanted; nil: there is none.
func (c judgement) reportOfWanted() *fleet.InstallReport {
	rep, request := c.r.InstallReport, c.r.InstallRequest
	if rep == nil || request == nil || rep.Generation != request.Generation || c.calledOff() {
		return nil
	}
	return rep
}

// refusal says what the agent refused, and how a person gets the install on: another agent, or what
// has the disk overwritten all the same.
func (c judgement) refusal() string {
	switch {
	case c.notUnderstood() && MayNotBoot(c.r):
		return fmt.Sprintf("refused by the agent: %s; the disk may be half-written, and nothing may boot from it; `%s` is understood if it asks for nothing new",
			c.r.InstallReport.Error, Overwrite(c.r))
	case c.notUnderstood():
		return fmt.Sprintf("refused by the agent: %s; %s", c.r.InstallReport.Error, c.byHand())
	}
	return fmt.Sprintf("refused by the agent: %s; `%s` overwrites it", c.r.InstallReport.Error, Overwrite(c.r))
}

// MayNotBoot reports whether the agent in memory may be all that runs on the machine, because an
// attempt may have left the disk half-written: no agent may be started after a restart.
func MayNotBoot(r fleet.Record) bool {
	c := judgement{r: r}
	return c.inMemory() && !c.intact()
}

// Overwrite is the command that has the disk written for which an agent refused an install.
func Overwrite(r fleet.Record) string {
	command := fmt.Sprintf("ironherd machine install %s --image IMAGE", r.ID)
	erase := judgement{r: r}.needsErase()
	if erase && r.Installed == nil {
		return command + " --erase"
	}
	command += " --reinstall"
	if erase {
		command += " --erase"
	}
	return command + " --reason WHY"
}
