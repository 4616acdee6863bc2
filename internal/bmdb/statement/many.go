package statement

import "context"

// Many are the statements that work on many rows at once. The engines have no common type for a
// list, so each has them in a file of its own.
type Many struct {
	// GetMachines is GetMachine for many; it returns those that there are.
	GetMachines func(ctx context.Context, ids []string) ([]MachineRecord, error)
	// ListMachines is ListMachine for many; it returns those that there are.
	ListMachines func(ctx context.Context, ids []string) ([]MachineLine, error)
	// GetAllBackoffs is GetBackoffs for many.
	GetAllBackoffs func(ctx context.Context, subjects []string) ([]Backoff, error)
	// GetMachinesHeld is GetMachineHeld for many.
	GetMachinesHeld func(ctx context.Context, session string, ids []string) ([]GetMachineHeldRow, error)

	// UpdateMachines is UpdateMachine for many. It returns how many it wrote.
	UpdateMachines func(ctx context.Context, rows []UpdateMachineParams) (int64, error)
	// MoveAgenda is DeleteAgenda for some entries, and then InsertAgenda for others.
	MoveAgenda func(ctx context.Context, gone []DeleteAgendaParams, come []InsertAgendaParams) error
	// InsertHistories is InsertHistory for many, in their order.
	InsertHistories   func(ctx context.Context, rows []InsertHistoryParams) error
	PutStates         func(ctx context.Context, rows []PutStateParams) error
	InsertStateCounts func(ctx context.Context, rows []InsertStateCountParams) error
	PutBackoffs       func(ctx context.Context, rows []PutBackoffParams) error
	DeleteBackoffs    func(ctx context.Context, rows []DeleteBackoffParams) error
	// FlushAllSeen is FlushSeen for many, in the order of the machines.
	FlushAllSeen func(ctx context.Context, rows []FlushSeenParams) error
}

// RowByRow returns Many for an engine in which a statement costs no round trip: it runs one for
// each row.
func RowByRow(db DBTX) Many {
	q := New(db)
	return Many{
		GetMachines:    find(q.GetMachine),
		ListMachines:   find(q.ListMachine),
		GetAllBackoffs: find(q.GetBackoffs),
		GetMachinesHeld: func(ctx context.Context, session string, ids []string) ([]GetMachineHeldRow, error) {
			return find(func(ctx context.Context, id string) ([]GetMachineHeldRow, error) {
				return q.GetMachineHeld(ctx, GetMachineHeldParams{ID: id, Session: session})
			})(ctx, ids)
		},
		UpdateMachines: func(ctx context.Context, rows []UpdateMachineParams) (written int64, err error) {
			err = write(func(ctx context.Context, r UpdateMachineParams) error {
				n, err := q.UpdateMachine(ctx, r)
				written += n
				return err
			})(ctx, rows)
			return written, err
		},
		MoveAgenda: func(ctx context.Context, gone []DeleteAgendaParams, come []InsertAgendaParams) error {
			if err := write(q.DeleteAgenda)(ctx, gone); err != nil {
				return err
			}
			return write(q.InsertAgenda)(ctx, come)
		},
		InsertHistories:   write(q.InsertHistory),
		PutStates:         write(q.PutState),
		InsertStateCounts: write(q.InsertStateCount),
		PutBackoffs:       write(q.PutBackoff),
		DeleteBackoffs:    write(q.DeleteBackoff),
		FlushAllSeen:      write(q.FlushSeen),
	}
}

// write runs a statement for each row.
func write[R any](run func(context.Context, R) error) func(context.Context, []R) error {
	return func(ctx context.Context, rows []R) error {
		for _, r := range rows {
			if err := run(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// find runs a query for each key, and returns all that they found.
func find[K, R any](run func(context.Context, K) ([]R, error)) func(context.Context, []K) ([]R, error) {
	return func(ctx context.Context, keys []K) (found []R, err error) {
		err = write(func(ctx context.Context, key K) error {
			rows, err := run(ctx, key)
			found = append(found, rows...)
			return err
		})(ctx, keys)
		return found, err
	}
}
