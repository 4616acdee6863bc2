// Package demo brings up a simulated world, the real control plane on its embedded database, and
// the real agent, all in one process and on loopback.
//
// Only the world is simulated. The control plane is daemon.Daemon with a configuration that anybody
// could have written (`ironherd demo --print-config` prints it), and it knows nothing of the world
// but the address of its API. Settings shortens intervals and raises rates, and changes nothing
// else.
//
// Options.Virtual puts virtual machines under QEMU into the place of the world: a list of hosts
// that start from a stock Debian, which `make vm-disk` has built, and that get the same Debian as
// an image. They end with the demo, and with this process.
//
// It promises:
//
//   - Run returns when its context ends, or when the function that it was given returns.
//   - Whatever it started has ended by then, machines' processes included. These end as well when
//     this process is killed.
//   - Without a directory of the caller's, nothing is left on disk after Close. What is left when
//     this process is killed is removed by the user's next demo.
package demo
