package bmdbtest

var randomTests = []test{}
