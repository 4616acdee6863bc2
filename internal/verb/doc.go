// Package verb says what people may ask to be done to a machine: whether it is possible, what
// happens then, and what is lost by it. Plans show people what it says before they confirm.
//
// It is pure: it has no clock, no state and no database. All that it says is a function of a Case
// or of parts of one. That is what somebody asks for, in their words; the machine's record; what
// package lifecycle says of it under a policy; who serves its provider; and an instant.
//
// What it promises:
//
//   - Each verb of fleet.Verbs has a Meaning. A verb of a newer version is possible nowhere.
//   - A refusal is an error of a kind of package fleet, in one sentence that names the machine, and
//     what to do instead where something helps.
//   - What a verb does is told with what it takes the place of, with whose operation it calls off,
//     and with what goes on although work is kept away. What is lost is told apart from that.
//   - What nobody has looked up is never taken for a permission: the zero Service forgets
//     nothing that its provider may still have.
//
// It changes nothing. Package bmdb does what is possible here, in the transaction that has locked
// the machine and read the record. So what was judged is what is changed.
//
// The machine may change between a plan and its confirmation. Then it is judged anew, and
// Planned.Differs compares the two: where the plan is not true of the machine any more, nothing is
// done to it. What it compares is stored with the plan, so it may have come from another version.
package verb
