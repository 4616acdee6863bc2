package statement

import (
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

// TestRowsText: what no engine could store is replaced.
func TestRowsText(t *testing.T) {
	t.Parallel()
	text, err := Rows{{"a\x00b", int64(-62135596800000000)}, {"\xff\"", 1}}.text()
	if err != nil || text != `[["a�b",-62135596800000000],["\ufffd\"",1]]` {
		t.Errorf("%s, %v", text, err)
	}
}
