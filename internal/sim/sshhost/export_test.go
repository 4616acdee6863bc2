package sshhost

// CheckLine parses a command line; every command that comes out has a name.
func CheckLine(line string) {
	script, err := parse(line)
	if err != nil {
		return
	}
	for _, c := range script {
		if len(c.words) == 0 {
			panic("a command without words")
		}
	}
}
