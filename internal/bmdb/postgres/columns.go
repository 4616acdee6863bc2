package postgres

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/ironherd/ironherd/internal/bmdb/statement"
)

// lastOfWord is a letter before the capital with which the next word of a field's name begins.
var lastOfWord = regexp.MustCompile("([a-z0-9])([A-Z])")

// names lists the columns that the fields of R are named after (last_at for LastAt), as sqlc names
// them. A statement that is made with it has them in the order of the fields, so that nobody needs
// to keep two orders alike; and it does not notice a column that a later version adds.
func names[R any]() string {
	var list []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[R]()) {
		list = append(list, strings.ToLower(lastOfWord.ReplaceAllString(field.Name, "${1}_${2}")))
	}
	return strings.Join(list, ", ")
}

// table is the table v of rows of R, from the arrays that are the parameters $first and following:
// see arrays.
func table[R any](first int) string {
	var list []string
	for i, field := range reflect.VisibleFields(reflect.TypeFor[R]()) {
		of := map[reflect.Kind]string{reflect.String: "TEXT", reflect.Int64: "BIGINT"}[field.Type.Kind()]
		list = append(list, fmt.Sprintf("CAST($%d AS %s[])", first+i, of))
	}
	return fmt.Sprintf("unnest(%s) AS v (%s)", strings.Join(list, ", "), names[R]())
}

// values is what follows INSERT INTO and the name of a table: rows of R, from such arrays.
func values[R any](first int) string {
	return fmt.Sprintf("(%s) SELECT * FROM %s", names[R](), table[R](first))
}

// arrays returns one array for each field of the rows, which are texts and numbers, in the order of
// the fields.
func arrays[R any](rows []R) []any {
	list := make([]any, reflect.TypeFor[R]().NumField())
	for field := range list {
		if reflect.TypeFor[R]().Field(field).Type.Kind() == reflect.String {
			list[field] = make([]string, len(rows))
		} else {
			list[field] = make([]int64, len(rows))
		}
	}
	for i := range rows {
		row := reflect.ValueOf(&rows[i]).Elem()
		for field := range list {
			switch array := list[field].(type) {
			case []string:
				array[i] = row.Field(field).String()
			case []int64:
				array[i] = row.Field(field).Int()
			}
		}
	}
	return list
}

// query returns the rows that a query finds: its columns are the fields of R, in their order, or R
// itself where that is no struct.
func query[R any](ctx context.Context, db statement.DBTX, text string, args ...any) (found []R, err error) {
	rows, err := db.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var r R
	columns := []any{&r}
	if v := reflect.ValueOf(&r).Elem(); v.Kind() == reflect.Struct {
		columns = make([]any, v.NumField())
		for i := range columns {
			columns[i] = v.Field(i).Addr().Interface()
		}
	}
	for rows.Next() {
		if err := rows.Scan(columns...); err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, rows.Err()
}
