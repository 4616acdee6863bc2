package provider

import (
	"sync"
	"time"
)

// The retry budget of one provider. In any window of time there are at most
//
//	budgetRatio × calls that succeeded + budgetFloor + window / budgetRefill
//
// retries. So whatever share of the calls fails, the provider gets a tenth more requests at most,
// and not several times as many: where few fail, few are repeated; where many fail, few earn a
// retry.
const (
	budgetRatio  = 0.11
	budgetFloor  = 10
	budgetRefill = time.Minute
)

// budget counts the retries that may be made. It starts full.
type budget struct {
	mu      sync.Mutex
	balance float64
	updated time.Time
}

func newBudget() *budget { return &budget{balance: budgetFloor, updated: time.Now()} }

// succeeded adds what a call that succeeded earns.
func (b *budget) succeeded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	b.balance = min(b.balance+budgetRatio, budgetFloor)
}

// spend takes one retry from the budget. It returns false when none is left.
func (b *budget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	if b.balance < 1 {
		return false
	}
	b.balance--
	return true
}

func (b *budget) refill() {
	now := time.Now()
	b.balance = min(b.balance+float64(now.Sub(b.updated))/float64(budgetRefill), budgetFloor)
	b.updated = now
}
