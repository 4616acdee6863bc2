package statement

import (
	"reflect"
	"testing"
)

// TestSingle: what a statement on many rows becomes for one.
func TestSingle(t *testing.T) {
	t.Parallel()
	for many, one := range map[string]string{
		putAgendas: "INSERT INTO agenda (subject, process, provider, due_at)\nSELECT $1, $2, $3, CAST($4 AS BIGINT) WHERE true\n" +
			"ON CONFLICT (subject, process) DO UPDATE SET due_at = excluded.due_at",
		deleteAgendas: "DELETE FROM agenda WHERE (subject, process) IN (SELECT $1, $2)",
		"UPDATE x SET a = '' FROM json_each($1) AS v\nWHERE k = v.value ->> 0 AND n = CAST(v.value ->> 1 AS BIGINT)": "UPDATE x SET a = ''\n" +
			"WHERE k = $1 AND n = CAST($2 AS BIGINT)",
		"SELECT value ->> 10\nFROM json_each($1)": "SELECT $11",
	} {
		if got := single(many); got != one {
			t.Errorf("got  %s\nwant %s", got, one)
		}
	}
}

// TestByColumn: what a statement on many rows becomes where each column is an array.
func TestByColumn(t *testing.T) {
	t.Parallel()
	for many, want := range map[string]columnar{
		putAgendas: {"INSERT INTO agenda (subject, process, provider, due_at)\nSELECT v.c0, v.c1, v.c2, v.c3 FROM " +
			"unnest(CAST($1 AS TEXT[]), CAST($2 AS TEXT[]), CAST($3 AS TEXT[]), CAST($4 AS BIGINT[])) AS v (c0, c1, c2, c3) WHERE true\n" +
			"ON CONFLICT (subject, process) DO UPDATE SET due_at = excluded.due_at", []bool{false, false, false, true}},
		"UPDATE x SET a = '' FROM json_each($1) AS v\nWHERE k = v.value ->> 1 AND n = CAST(v.value ->> 0 AS BIGINT)": {
			"UPDATE x SET a = '' FROM unnest(CAST($1 AS BIGINT[]), CAST($2 AS TEXT[])) AS v (c0, c1)\nWHERE k = v.c1 AND n = v.c0", []bool{true, false},
		},
		getAllAgenda: {"SELECT subject, process, provider, due_at FROM agenda WHERE subject = ANY(CAST($1 AS TEXT[]))", []bool{false}},
	} {
		if got := byColumn(many); !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
}

// TestRowsArrays: the columns as arrays; another type than the statement's is an error.
func TestRowsArrays(t *testing.T) {
	t.Parallel()
	got, err := Rows{{"a", int64(1)}, {"b", int64(2)}}.arrays([]bool{false, true})
	if err != nil || !reflect.DeepEqual(got, []any{[]string{"a", "b"}, []int64{1, 2}}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := (Rows{{1}}).arrays([]bool{true}); err == nil {
		t.Errorf("an int is taken: %v", got)
	}
}

// TestRowsText: what no engine could store is replaced.
func TestRowsText(t *testing.T) {
	t.Parallel()
	text, err := Rows{{"a\x00b", int64(-62135596800000000)}, {"\xff\"", 1}}.text()
	if err != nil || text != `[["a�b",-62135596800000000],["\ufffd\"",1]]` {
		t.Errorf("%s, %v", text, err)
	}
}
