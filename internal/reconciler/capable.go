package reconciler

// Capabilities is what an Applier can do besides; nil: it cannot.
type Capabilities struct {
	Sourcer   Sourcer
	Pauser    Pauser
	Prober    Prober
	Publisher Publisher
}

// Capable is an Applier that stands for another one, and says what that can do.
type Capable interface{ Capabilities() Capabilities }

// capabilitiesOf returns what an Applier can do besides.
func capabilitiesOf(a Applier) (c Capabilities) {
	if capable, ok := a.(Capable); ok {
		return capable.Capabilities()
	}
	c.Sourcer, _ = a.(Sourcer)
	c.Pauser, _ = a.(Pauser)
	c.Prober, _ = a.(Prober)
	c.Publisher, _ = a.(Publisher)
	return c
}
