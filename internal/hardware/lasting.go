package hardware

import (
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/ironherd/ironherd/api/agent/v1"
)

// Lasting returns a copy of what a report says of the hardware. Temperatures and hours, which
// change by themselves, are left out.
func Lasting(report *agentv1.HardwareReport) *agentv1.HardwareReport {
	lasting := proto.CloneOf(report)
	for _, device := range lasting.GetBlockDevices() {
		if health := device.GetHealth(); health != nil {
			health.TemperatureCelsius, health.PowerOnHours = 0, 0
		}
	}
	return lasting
}
