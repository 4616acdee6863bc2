package equinixapi

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// page is a part of a list.
type page struct {
	number, size, last, total int
	path                      string
	query                     url.Values
}

// pageOf reads the paging parameters; what makes no sense gets the default.
func (a *API) pageOf(r *http.Request, total int) page {
	query := r.URL.Query()
	p := page{number: 1, size: 10, total: total, path: r.URL.Path, query: query}
	if n, err := strconv.Atoi(query.Get("page")); err == nil && n >= 1 && n <= 100_000 {
		p.number = n
	}
	if n, err := strconv.Atoi(query.Get("per_page")); err == nil && n >= 1 {
		p.size = min(n, a.cfg.MaxPerPage)
	}
	p.last = max(1, (total+p.size-1)/p.size)
	return p
}

func (p page) bounds() (from, to int) {
	from = min((p.number-1)*p.size, p.total)
	return from, min(from+p.size, p.total)
}

// meta describes the page. Its links have no path prefix: clients would put a second one before it.
func (p page) meta() obj {
	link := func(number int, there bool) any {
		if !there {
			return nil
		}
		query := maps.Clone(p.query)
		query.Set("page", strconv.Itoa(number))
		return hrefTo(p.path + "?" + query.Encode())
	}
	return obj{
		"first": link(1, true), "last": link(p.last, true), "self": link(p.number, true),
		"previous": link(p.number-1, p.number > 1), "next": link(p.number+1, p.number < p.last),
		"current_page": p.number, "last_page": p.last, "total": p.total,
	}
}

// arrange puts a list in the order that the request asks for. fields are what can be sorted by; the
// items come in their natural order.
func arrange[T any](a *API, r *http.Request, items []T, fields map[string]func(T) string) error {
	query := r.URL.Query()
	name, direction := query.Get("sort_by"), query.Get("sort_direction")
	field, known := fields[name]
	if name != "" && !known {
		return unprocessable(fmt.Sprintf("sort_by %q is not one of %s", name, strings.Join(slices.Sorted(maps.Keys(fields)), ", ")))
	}
	if err := oneOf("sort_direction", strings.ToLower(direction), "asc", "desc"); direction != "" && err != nil {
		return err
	}
	if happens(a.cfg.Shuffle) {
		a.mu.Lock()
		seed := a.shuffle.Uint64()
		a.mu.Unlock()
		random := rand.New(rand.NewPCG(seed, 0))
		random.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	}
	if !known {
		return nil
	}
	sign := 1
	if strings.EqualFold(direction, "desc") {
		sign = -1
	}
	slices.SortStableFunc(items, func(x, y T) int { return sign * cmp.Compare(field(x), field(y)) })
	return nil
}

// writePage answers with one page of a list.
func writePage[T any](a *API, w http.ResponseWriter, r *http.Request, name string, items []T, render func(T) []byte) {
	p := a.pageOf(r, len(items))
	from, to := p.bounds()
	body := append(make([]byte, 0, 1024+(to-from)*6144), `{"`+name+`":[`...)
	for i, item := range items[from:to] {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, render(item)...)
	}
	body = append(append(append(body, `],"meta":`...), encode(p.meta())...), '}')
	_, _ = w.Write(body)
}
