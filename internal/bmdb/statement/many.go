package statement

import "context"

// Many are the statements that work on many rows at once. The engines have no common type for a
// list, so each has them in a file of its own.
type Many interface {
	// GetMachines is GetMachine for many; it returns those that there are.
	GetMachines(ctx context.Context, ids []string) ([]MachineRecord, error)
	// ListMachines is ListMachine for many; it returns those that there are.
	ListMachines(ctx context.Context, ids []string) ([]MachineLine, error)
	// GetAllBackoffs is GetBackoffs for many.
	GetAllBackoffs(ctx context.Context, subjects []string) ([]Backoff, error)
	// ListVoid returns what of it the session does not hold.
	ListVoid(ctx context.Context, session string, held []Held) (void []Held, err error)
	// GetMachinesHeld is GetMachineHeld for many.
	GetMachinesHeld(ctx context.Context, session string, ids []string) ([]GetMachineHeldRow, error)

	// UpdateMachines is UpdateMachine for many. It returns how many it wrote.
	UpdateMachines(ctx context.Context, rows []UpdateMachineParams) (int64, error)
	// MoveAgenda is DeleteAgenda for some entries, and then InsertAgenda for others.
	MoveAgenda(ctx context.Context, gone []DeleteAgendaParams, come []InsertAgendaParams) error
	// InsertHistories is InsertHistory for many, in their order.
	InsertHistories(ctx context.Context, rows []InsertHistoryParams) error
	PutStates(ctx context.Context, rows []PutStateParams) error
	InsertStateCounts(ctx context.Context, rows []InsertStateCountParams) error
	DeleteStateCounts(ctx context.Context, ids []int64) error
	PutBackoffs(ctx context.Context, rows []PutBackoffParams) error
	DeleteBackoffs(ctx context.Context, rows []DeleteBackoffParams) error
	// FlushAllSeen is FlushSeen for many, in the order of the machines.
	FlushAllSeen(ctx context.Context, rows []FlushSeenParams) error
}

// Held is a machine that somebody believes to hold under an epoch.
type Held struct {
	Machine string
	Epoch   int64
}

// RowByRow returns Many for an engine in which a statement costs no round trip: it runs one for
// each row.
func RowByRow(db DBTX) Many { return rowByRow{New(db)} }

type rowByRow struct{ *Queries }

// each runs a statement for each row.
func each[R any](ctx context.Context, rows []R, run func(context.Context, R) error) error {
	for _, r := range rows {
		if err := run(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// collect runs a query for each key, and returns all that they found.
func collect[K, R any](ctx context.Context, keys []K, run func(context.Context, K) ([]R, error)) (found []R, err error) {
	err = each(ctx, keys, func(ctx context.Context, key K) error {
		rows, err := run(ctx, key)
		found = append(found, rows...)
		return err
	})
	return found, err
}

func (q rowByRow) GetMachines(ctx context.Context, ids []string) ([]MachineRecord, error) {
	return collect(ctx, ids, q.GetMachine)
}

func (q rowByRow) ListMachines(ctx context.Context, ids []string) ([]MachineLine, error) {
	return collect(ctx, ids, q.ListMachine)
}

func (q rowByRow) GetAllBackoffs(ctx context.Context, subjects []string) ([]Backoff, error) {
	return collect(ctx, subjects, q.GetBackoffs)
}

func (q rowByRow) ListVoid(ctx context.Context, session string, held []Held) ([]Held, error) {
	return collect(ctx, held, func(ctx context.Context, h Held) ([]Held, error) {
		n, err := q.CountMachineHeld(ctx, CountMachineHeldParams{ID: h.Machine, Session: session, Epoch: h.Epoch})
		if err != nil || n > 0 {
			return nil, err
		}
		return []Held{h}, nil
	})
}

func (q rowByRow) GetMachinesHeld(ctx context.Context, session string, ids []string) ([]GetMachineHeldRow, error) {
	return collect(ctx, ids, func(ctx context.Context, id string) ([]GetMachineHeldRow, error) {
		return q.GetMachineHeld(ctx, GetMachineHeldParams{ID: id, Session: session})
	})
}

func (q rowByRow) UpdateMachines(ctx context.Context, rows []UpdateMachineParams) (written int64, err error) {
	err = each(ctx, rows, func(ctx context.Context, r UpdateMachineParams) error {
		n, err := q.UpdateMachine(ctx, r)
		written += n
		return err
	})
	return written, err
}

func (q rowByRow) MoveAgenda(ctx context.Context, gone []DeleteAgendaParams, come []InsertAgendaParams) error {
	if err := each(ctx, gone, q.DeleteAgenda); err != nil {
		return err
	}
	return each(ctx, come, q.InsertAgenda)
}

func (q rowByRow) InsertHistories(ctx context.Context, rows []InsertHistoryParams) error {
	return each(ctx, rows, q.InsertHistory)
}

func (q rowByRow) PutStates(ctx context.Context, rows []PutStateParams) error {
	return each(ctx, rows, q.PutState)
}

func (q rowByRow) InsertStateCounts(ctx context.Context, rows []InsertStateCountParams) error {
	return each(ctx, rows, q.InsertStateCount)
}

func (q rowByRow) DeleteStateCounts(ctx context.Context, ids []int64) error {
	return each(ctx, ids, q.DeleteStateCount)
}

func (q rowByRow) PutBackoffs(ctx context.Context, rows []PutBackoffParams) error {
	return each(ctx, rows, q.PutBackoff)
}

func (q rowByRow) DeleteBackoffs(ctx context.Context, rows []DeleteBackoffParams) error {
	return each(ctx, rows, q.DeleteBackoff)
}

func (q rowByRow) FlushAllSeen(ctx context.Context, rows []FlushSeenParams) error {
	return each(ctx, rows, q.FlushSeen)
}
