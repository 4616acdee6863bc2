// Package webui is the page worth leaving open: the fleet at a glance, and each machine with its facts, its decisions and its
// history. It reaches the fleet only through api/fleet/v1, as any other client does, and can change nothing.
package webui
