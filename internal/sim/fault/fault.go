// Package fault decides when something goes wrong in a simulated world, and counts it.
package fault

// Count says how often a fault could have happened, and how often it did.
type Count struct {
	Fault         string `json:"fault"`
	Opportunities int    `json:"opportunities"`
	Fired         int    `json:"fired"`
}
