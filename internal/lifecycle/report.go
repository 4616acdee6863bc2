package lifecycle

import "github.com/ironherd/ironherd/internal/fleet"

// Reported reports whether it is written already how the attempt of a report has ended.
func Reported(before fleet.Record, r fleet.InstallReport) bool {
	was := before.InstallReport
	return was != nil && was.Generation == r.Generation && was.Attempt == r.Attempt
}

// Outdone reports whether what is written of an attempt gives way to the report of its agent. A
// failure that was only concluded does, because it says neither why nor what became of the disk.
// Success outdoes every failure. A report that is repeated changes nothing, and neither does one of
// a failure where the system has come up, or a person has said that it has.
func Outdone(before fleet.Record, r fleet.InstallReport) bool {
	was, up := before.InstallReport, before.Installed
	switch {
	case was.OK:
		return false
	case r.OK:
		return true
	}
	return was.Disk == fleet.DiskUnknown && was.HeldGeneration == 0 && was.Error != r.Error && (up == nil || !up.Follows(r.Generation, r.Attempt))
}

// TouchedBefore says whether an attempt before that of a report may have written a disk since the
// installed system came up. Only the newest report is kept. So where one that was only concluded
// gives way, nothing is known of the attempts before it, unless there was none.
func TouchedBefore(before fleet.Record, r fleet.InstallReport) bool {
	was, up := before.InstallReport, before.Installed
	if was == nil || up != nil && up.Follows(was.Generation, was.Attempt) {
		return false
	}
	runs := fleet.InstallGeneration(0)
	if up != nil {
		runs = up.Generation
	}
	first := r.Attempt == 1 && r.Generation == runs+1
	return !was.Untouched() && (!first || !Reported(before, r))
}
