package webui

import (
	"bytes"
	"embed"
	"net/http"
	"path"
	"time"

	"github.com/ironherd/ironherd/internal/server/webui/live"
)

//go:embed assets
var assetFiles embed.FS

// assets are the files that pages load, by name, and the mark of all of them and of this page's
// making.
type assets struct {
	files map[string]asset
	build string
}

type asset struct {
	content []byte
	kind    string
	etag    string
}

var assetKinds = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

func loadAssets() assets {
	a := assets{files: map[string]asset{}}
	entries, _ := assetFiles.ReadDir("assets") // embedded: cannot fail
	marks := ""
	for _, e := range entries {
		content, _ := assetFiles.ReadFile("assets/" + e.Name())
		mark := live.MarkOf(string(content))
		a.files[e.Name()] = asset{content: content, kind: assetKinds[path.Ext(e.Name())], etag: `"` + mark + `"`}
		marks += e.Name() + mark
	}
	a.build = live.MarkOf(marks)
	return a
}

// asset serves one file. Browsers keep it and ask whether it is still the same.
func (s *site) asset(w http.ResponseWriter, r *http.Request) {
	file, ok := s.assets.files[r.PathValue("name")]
	if !ok {
		s.notFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", file.kind)
	h.Set("ETag", file.etag)
	h.Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(file.content))
}
