package webui

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ironherd/ironherd/internal/server/webui/live"
)

const (
	machineTime = "2006-01-02T15:04:05.000Z"
	humanTime   = "2006-01-02 15:04:05Z" // as the command line writes it
)

// known says whether an instant was given and means something.
func known(t *timestamppb.Timestamp) bool {
	return t != nil && t.IsValid() && t.AsTime().Unix() > 0
}

// timeText writes an instant for people.
func timeText(ctx context.Context, t time.Time) string {
	if now, ok := live.Now(ctx); ok {
		return relativeTime(now.Sub(t))
	}
	return t.Format(humanTime)
}

// relativeTime writes how long ago something was; negative: in how long it will be. The script has
// the same words.
func relativeTime(ago time.Duration) string {
	switch {
	case ago > -time.Second && ago < time.Second:
		return "now"
	case ago < 0:
		return "in " + roughDuration(-ago)
	}
	return roughDuration(ago) + " ago"
}

// roughDuration writes a duration in its greatest unit. Seconds and minutes go a bit beyond the
// next unit, where they say more.
func roughDuration(d time.Duration) string {
	switch s := int64(d / time.Second); {
	case s < 100:
		return fmt.Sprintf("%d s", s)
	case s < 100*60:
		return fmt.Sprintf("%d min", s/60)
	case s < 48*3600:
		return fmt.Sprintf("%d h", s/3600)
	default:
		return fmt.Sprintf("%d d", s/86400)
	}
}

// durationText writes a measured duration.
func durationText(d *durationpb.Duration) string {
	if d == nil || !d.IsValid() {
		return "–"
	}
	return exactDuration(d.AsDuration())
}

func exactDuration(v time.Duration) string {
	switch {
	case v < 0:
		return "–"
	case v < time.Second:
		return fmt.Sprintf("%d ms", v.Milliseconds())
	case v < 100*time.Second:
		return fmt.Sprintf("%.1f s", v.Seconds())
	case v < 100*time.Minute:
		return fmt.Sprintf("%d min %02d s", int(v.Minutes()), int(v.Seconds())%60)
	}
	return fmt.Sprintf("%d h %02d min", int(v.Hours()), int(v.Minutes())%60)
}
