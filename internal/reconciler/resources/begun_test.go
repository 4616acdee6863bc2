package resources

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestBegunToDelete: the grace of a Pod is no part of when its deletion began.
func TestBegunToDelete(t *testing.T) {
	t.Parallel()
	began, grace := time.Unix(1800000000, 0).UTC(), int64(30)
	with, without := &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadata{}
	without.DeletionTimestamp = &metav1.Time{Time: began}
	with.DeletionTimestamp, with.DeletionGracePeriodSeconds = &metav1.Time{Time: began.Add(30 * time.Second)}, &grace
	for _, live := range []*metav1.PartialObjectMetadata{with, without} {
		if got := begunToDelete(live); !got.Equal(began) {
			t.Errorf("%v, want %v", got, began)
		}
	}
}
