// Package demo is the one-minute tour: a simulated world, the real control plane on its embedded
// database, and the real agent, all in one process and on loopback.
//
// Nothing on the way from capacity to installed machines is played: the control plane is
// daemon.Daemon with a configuration that could be written in a file (Demo.Config; it is printed by
// `ironherd demo --print-config`), and it knows nothing of the world but the address of its API.
// The demo shortens intervals and raises rates, each in one place (settings), and changes nothing
// else.
//
// What it promises: Run returns when its context ends or when what was waited for has come;
// whatever it started has ended by then, machines' processes included; without a directory of the
// caller's, nothing is left on disk.
package demo
