package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Registry is what has the metrics.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }
