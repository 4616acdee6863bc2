package live

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// loads counts the loads of views.
type loads struct {
	mu               sync.Mutex
	under, most, all int
}

// view returns a view whose loads are counted, and take so long.
func (l *loads) view(key string, takes time.Duration) stubView {
	return stubView{key: key, load: func(ctx context.Context) (*Content, error) {
		l.add(1)
		defer l.add(-1)
		select {
		case <-time.After(takes):
			return &Content{Title: key}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
}

func (l *loads) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.under += n
	l.most = max(l.most, l.under)
	l.all += max(n, 0)
}

// leaving looks at a view and leaves at once.
func leaving(t *testing.T, c *Cache, v View) {
	t.Helper()
	ctx, leave := context.WithTimeout(t.Context(), time.Millisecond)
	defer leave()
	if _, err := c.Look(ctx, v); err == nil {
		t.Errorf("view %s: who left has an answer", v.Key())
	}
	synctest.Wait()
}

// TestLoadsThatNobodyWaitsForAreBounded, however many views somebody asks for and leaves. A view
// that was given up is loaded for whoever comes next.
func TestLoadsThatNobodyWaitsForAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		options := testOptions(new(strings.Builder))
		options.Timeout = 5 * time.Second
		c, all := NewCache(options), new(loads)
		for n := range 10 * maxCached {
			leaving(t, c, all.view(fmt.Sprint(n), 4*time.Second))
			if all.under > maxAbandoned {
				t.Fatalf("after %d callers who left, %d loads are under way", n+1, all.under)
			}
		}
		if all.most > maxAbandoned+1 {
			t.Errorf("%d loads were under way, of one caller at a time", all.most)
		}
		last := all.view(fmt.Sprint(10*maxCached-1), 4*time.Second)
		if a, err := c.Look(t.Context(), last); err != nil || a.Err != nil || a.Value == nil {
			t.Errorf("who stays has %+v, %v", a, err)
		}
		time.Sleep(options.Timeout)
		synctest.Wait()
		before := all.all
		leaving(t, c, all.view("later", 4*time.Second))
		if a, err := c.Look(t.Context(), all.view("later", 4*time.Second)); err != nil || a.Value == nil || all.all != before+1 {
			t.Errorf("a load that goes on brings %+v, %v, and there were %d", a, err, all.all-before)
		}
	})
}

// TestACostlyLoadThatIsGivenUp says so to whoever comes next, and is not begun again at once.
func TestACostlyLoadThatIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		options := testOptions(new(strings.Builder))
		options.Timeout = 5 * time.Second
		c, others, begun := NewCache(options), new(loads), 0
		for n := range maxAbandoned {
			leaving(t, c, others.view(fmt.Sprint(n), 4*time.Second))
		}
		costly := stubView{key: "costly", load: func(ctx context.Context) (*Content, error) {
			begun++
			begin := time.Now()
			<-ctx.Done()
			return &Content{Cost: time.Since(begin)}, ctx.Err()
		}}
		leaving(t, c, costly)
		if a, err := c.Look(t.Context(), costly); err != nil || a.Err == nil || a.Err.Error() != errLeft.Error() || begun != 1 {
			t.Errorf("it was begun %d times, and whoever comes next has %v, %v", begun, a.Err, err)
		}
		time.Sleep(options.Timeout)
	})
}

// TestAViewIsLoadedOnceAtATime, also when many others are looked at meanwhile.
func TestAViewIsLoadedOnceAtATime(t *testing.T) {
	t.Parallel()
	for name, stays := range map[string]bool{"its caller stays": true, "its caller leaves": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				options := testOptions(new(strings.Builder))
				options.Timeout = 5 * time.Second
				c, all, others := NewCache(options), new(loads), new(loads)
				v := all.view("slow", 4*time.Second)
				var group sync.WaitGroup
				if stays {
					group.Go(func() { _, _ = c.Look(t.Context(), v) })
				} else {
					leaving(t, c, v)
				}
				for n := range 2 * maxCached {
					group.Go(func() { _, _ = c.Look(t.Context(), others.view(fmt.Sprint(n), time.Second)) })
					synctest.Wait()
				}
				if a, err := c.Look(t.Context(), v); err != nil || a.Value == nil || all.all != 1 {
					t.Errorf("it was loaded %d times, and brings %+v, %v", all.all, a, err)
				}
				group.Wait()
				_, _ = c.Look(t.Context(), others.view("one more", 0))
				if len(c.entries) > maxCached {
					t.Errorf("%d views are kept", len(c.entries))
				}
			})
		})
	}
}
