// Package sshhost is the SSH server of a simulated machine: a real one, on a real socket, in front
// of a file system that is a directory of the simulator.
//
// It admits root with a key that the machine's own /root/.ssh/authorized_keys lists, serves SFTP,
// and executes command lines: a small part of the POSIX shell's grammar (words, quotes, &&, ||, ;,
// redirections), a few programs of a base system that the server plays itself, and whatever else is
// an executable file of the machine, which its Options.Execute runs.
//
// Nothing that a client names leads out of the machine's directory: not "..", not a symbolic link.
// Contents that many machines have in common are one inode on disk (see Store); whoever writes to
// such a file gets an inode of its own first.
//
// A server lives as long as the context that it was given, which is its machine's power: when that
// ends, listener, connections and commands end with it, in the middle of whatever they do.
package sshhost
