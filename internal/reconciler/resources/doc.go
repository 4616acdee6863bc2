// Package resources keeps the base resources of a cluster: what the release wants (package
// builtin), and what is in a directory of manifests (package manifest), both treated alike. It
// implements reconciler.Applier and reconciler.Planner; whether this process may write at all is
// not its business.
//
// # A pass
//
//	            ┌ mirrors (Run): metadata of what carries our label, one watch per kind ┐
//	            ▼                                                                       │
//	wanted ──► compare ─► look up ─► record ──► apply, stage by stage ──► prune ──► inventory
//	            │ no       is it     what is     namespaces, definitions,   the other
//	            │ request  there all about to    access, the rest, gates    way round
//	            ▼          the same? be created
//	          nothing to do: the pass is over, and no request was made
//
// It goes through these steps twice: first with the release's own objects, then with those of the
// manifests. So nothing in a manifest can hold up what the release needs. After the first time it
// is known whether API servers may rely on it (Report.Ready), and that is told at once
// (Applier.OnReady): every object whose object.Need is Required is as wanted, and nothing of the
// kind is left by another release.
//
// A pass compares what is wanted with mirrors, by who owns which field and by a hash, never by
// value (package object says why). A pass that finds nothing to do reads only files and memory.
// Every change in a mirror signals Changed, so a pass repairs drift as soon as the API server tells
// of it. What is wanted and does not bear our label (an object of others that is left alone once it
// is there) is in no mirror: passes ask for it anew after Options.LookEvery.
//
// An object whose manifest names others (object.DependsOn) is created or changed only when each of
// those is as wanted and healthy (package health). In a pass it comes after them; while it waits,
// that is reported, and nothing else waits with it. Objects that depend on themselves, or on what
// is not wanted, are refused, and kept.
//
// At its end a pass looks at the health of what has changed since the last one. That takes a
// request for each such object that has a status, and two seconds at most; it fails nothing and
// gates nothing. Publish shows in a ConfigMap how each object stands.
//
// The failure of one object does not stop the others. The pass reports it, logs it when its reason
// is new, and tries the object again after a pause that grows from 100 ms to 30 s, or at once when
// the object, what is wanted of it, or an override changes. A kind that the server does not have is
// asked for again at the same pace; so a custom resource follows its definition by itself. Only an
// API server that does not answer at all ends a pass early.
//
// A plan (Applier.Plan) is the same pass with another end: what would be written goes to the server
// as a dry run, and what comes of it is kept in memory for what depends on it.
//
// # Who owns what
//
// We apply with the field manager object.Manager. An edit of an object that we created is drift,
// and so is an edit of one to which we last applied this very configuration: a pass takes the
// fields back. Fields that were there before us, and fields that another manager declares by
// server-side apply, are a conflict: the report names the fields and who owns them, and a pass
// takes them only with Options.Force, where the manifest says so, or while people force it. Until
// then it changes nothing of the object. If others change or delete an object again and again,
// passes repair it ever less often, and report it until nobody has undone it for a while.
//
// Where the server names a field for which it refuses a change of an object that it would accept as
// a new one (roleRef, provisioner, handler …), the object is deleted and created again, if we
// created it, its kind is configuration alone (object.Key.Replaceable), and others have nothing in
// it (object.Others) or API servers wait for it; else that is a failure. What a policy denies is
// one, too.
//
// # What is deleted
//
// Only what we created, and package inventory says how that is known. Namespaces and definitions of
// kinds are never deleted, because that deletes what others put into them. What of the release's
// own set is not selected is left as it is. None of a kind is deleted while something of that kind
// fails (it may be what takes its place). What another release only offered (object.Optional) is
// kept while a manifest cannot be read, or may be unfinished: it may be in there.
//
// What finalizers hold when it is deleted is told by name (Report.Deleting), and fails nothing.
//
// What was in the manifests is deleted once each pass of a while (Options.Absence) has found it
// missing: an object that is moved from file to file is in neither for a moment. It is not deleted
// while a manifest cannot be read, or may be unfinished (Options.Settled), nor if it is most of
// what was there, nor while other nodes have other manifests (Applier.AskConsent). A person can
// overrule the last two.
//
// # Fencing, and what remains possible
//
// Every request of a pass obeys its context, which ends before the leadership can. Every update and
// every deletion names the UID and the resourceVersion that were seen; every creation is refused if
// there is an object; the inventory is written under its resourceVersion, and nothing is created
// before it is. So what the successor has written is never overwritten or deleted. What a request
// that was already under way when the leadership ended can still do, for the API server knows
// nothing of leaderships:
//
//   - an update, to what the deposed leader wanted, of an object that nobody has touched since it
//     saw it. The successor's watch sees that it is not as wanted, and applies again, within a
//     second; this is also what the full pass every 30 s is for;
//   - a deletion of such an object, because the deposed leader did not want it or was about to
//     create it again. If the successor wants it, it sees that it is gone, and creates it;
//   - a creation of an object that the deposed leader had recorded. Its successor has read the
//     record, so the object is ours: kept if it is wanted, else deleted. If it arrives later than
//     inventory.Settle after it was recorded, it stays, and is never deleted.
//
// # Failures
//
//   - What the manifests want hangs, as behind a webhook that does not answer: a pass leaves the
//     rest of it to the next one once Options.Budget is spent, so that what the release needs is
//     looked at again soon. See budget.
//   - Death at any point of a pass: the next one goes on from what is there. See package inventory
//     for each step.
//   - The API server is away: the mirrors come back by themselves within about three seconds of its
//     return; until then a pass fails and sends nothing.
//   - The manifests do not answer, as on a disk that hangs: a pass waits for them for a while,
//     once, and goes on with what was read before. It deletes nothing of theirs. Where they are
//     always that slow, passes have what the pass before them has begun to read.
//   - The server answers, and does not store the inventory (a webhook that nobody serves, say):
//     nothing is created, everything else goes on.
//   - Run ends in the middle of a pass: the pass fails; what it remembered is gone.
package resources
