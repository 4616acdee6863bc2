// Package bmdb is the Bare Metal Database: the only state of the control plane.
package bmdb
