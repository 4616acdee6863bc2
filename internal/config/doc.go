// Package config loads the configuration: one YAML file, the environment (IRONHERD_…) over it,
// flags over that.
//
// It promises:
//
//   - Load reports every fault at once. Each names its place (file and line, variable or flag), its
//     key, what is wrong and what would be right. A configuration with a fault is never used in
//     part.
//   - A key that nobody knows is a fault; so is one that is given twice.
//   - Defaults live with the component that uses them; this package composes components' Configs
//     and adds what concerns several of them (references between sections, files that must exist).
//   - No secret is in it: secrets are in files of their own, which the configuration names.
//
// The faults of components come from their Validate methods, whose contract is: an error, or
// several joined by errors.Join, of kind Invalid, each beginning with the key that it is about,
// relative to the component's section.
package config
