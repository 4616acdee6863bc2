package provider

import (
	"sync"
	"time"
)

// The retry budget of one provider. In any window of time there are at most
//
//	budgetRatio × calls + budgetFloor + window / budgetRefill
//
// retries, so that an outage is answered with a tenth more requests, not with several times as
// many.
const (
	budgetRatio  = 0.1
	budgetFloor  = 10
	budgetRefill = time.Minute
)

// budget counts what may be spent on retries. It starts full.
type budget struct {
	mu      sync.Mutex
	balance float64
	updated time.Time
}

func newBudget() *budget { return &budget{balance: budgetFloor, updated: time.Now()} }

// call pays in for a first attempt.
func (b *budget) call() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refill()
	b.balance = min(b.balance+budgetRatio, budgetFloor)
}

// spend takes one retry, if there is one.
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
