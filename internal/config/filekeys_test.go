package config

import (
	"reflect"
	"strings"
	"testing"
)

// TestFileNamesAreFileKeys: what is called a file is read relative to the configuration's own.
func TestFileNamesAreFileKeys(t *testing.T) {
	t.Parallel()
	c := Default()
	p := NewProvider("x", "")
	p.Install = &Install{}
	c.Providers = []Provider{p}
	known := map[*string]bool{}
	for _, k := range c.fileKeys() {
		known[k.path] = true
	}
	found := 0
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				walk(path, v.Elem())
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(path+"[]", v.Index(i))
			}
		case reflect.Struct:
			for i := range v.NumField() {
				f := v.Type().Field(i)
				if !f.IsExported() {
					continue
				}
				name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
				name = strings.TrimPrefix(path+"."+name, ".")
				if text, is := v.Field(i).Addr().Interface().(*string); is && strings.HasSuffix(name, "_file") {
					found++
					if !known[text] {
						t.Errorf("%s is no file key", name)
					}
				}
				walk(name, v.Field(i))
			}
		}
	}
	walk("", reflect.ValueOf(&c))
	if found < 5 {
		t.Errorf("only %d keys end with _file", found)
	}
}
