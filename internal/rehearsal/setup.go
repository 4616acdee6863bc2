package rehearsal

import (
	"strings"
	"time"

	"github.com/ironherd/ironherd/internal/fleet"
	"github.com/ironherd/ironherd/internal/shepherd"
	"github.com/ironherd/ironherd/internal/shepherd/initializer"
	"github.com/ironherd/ironherd/internal/shepherd/janitor"
	"github.com/ironherd/ironherd/internal/shepherd/operations"
	"github.com/ironherd/ironherd/internal/shepherd/prober"
	"github.com/ironherd/ironherd/internal/shepherd/provisioner"
	"github.com/ironherd/ironherd/internal/shepherd/recoverer"
	"github.com/ironherd/ironherd/internal/shepherd/updater"
)

// Brisk is a setup whose deadlines are short, so that much happens in an hour: for seeds.
func Brisk() Setup {
	policy := fleet.DefaultPolicy()
	policy.HeartbeatInterval = 80 * time.Second
	policy.NeverSpokeAfter, policy.SilentAfter = 5*time.Minute, 4*time.Minute
	policy.InstallTimeout, policy.BootTimeout = 9*time.Minute, 8*time.Minute
	policy.ProbeInterval, policy.WatchInterval, policy.UnreachableAfter = 40*time.Second, 2*time.Minute, 6*time.Minute
	policy.InstallRetry = fleet.Backoff{Initial: 20 * time.Second, Exponent: 1.5, Maximum: 2 * time.Minute}
	policy.ProvisionInterval, policy.UpdateInterval, policy.UpdateSettledInterval = 90*time.Second, 90*time.Second, 5*time.Minute
	policy.RecoveryAtOnce, policy.RecoveryAtOncePerLocation, policy.RecoveryStepTimeout = 2, 1, 6*time.Minute
	policy.SuspectFor, policy.OperationTimeout = 8*time.Minute, 8*time.Minute
	policy.RecoveryMemory = time.Hour

	loop := shepherd.DefaultConfig()
	loop.Poll, loop.Parallelism = 3*time.Minute, 4
	start := initializer.DefaultConfig()
	start.Endpoint = "control-plane.example:443"
	start.StartBackoff = fleet.Backoff{Initial: 20 * time.Second, Exponent: 1.5, Maximum: 3 * time.Minute}
	start.ProviderBackoff, start.IDBackoff = fleet.Backoff{Initial: 20 * time.Second}, fleet.Backoff{Initial: 2 * time.Minute}
	repair := recoverer.DefaultConfig()
	repair.Backoff.Initial, repair.Backoff.Maximum = 20*time.Second, 2*time.Minute
	keep := janitor.DefaultConfig()
	keep.Interval = time.Minute
	create := provisioner.DefaultConfig()
	create.MaxMachines, create.CreateRate = 0, fleet.Rate{Every: 8 * time.Second, Burst: 1}
	create.Penalty, create.SettlingTime = 4*time.Minute, 5*time.Minute
	refresh := updater.DefaultConfig()
	refresh.SettlingTime = 5 * time.Minute
	return Setup{
		Policy: policy, SessionLease: 2 * time.Minute, Loops: Loops{loop, loop, loop, loop, loop, loop}, Initializer: start, Recoverer: repair,
		Operations: operations.DefaultConfig(), Prober: prober.DefaultConfig(), Janitor: keep, Image: anImage,
		Providers: []Provider{{Name: "metal", Provisioner: create, Updater: refresh}},
	}
}

var anImage = fleet.Image{
	Name: "rehearsed", URL: "http://images.example/os.zst", Digest: "sha256:" + strings.Repeat("ab", 32), Compression: fleet.CompressionZstd,
}
