// Package config loads the configuration: one YAML file, the environment (IRONHERD_…) over it,
// flags over that.
//
// It promises:
//
//   - Load reports every fault at once. Each names its place (file and line, variable or flag), its
//     key, what is wrong and what would be right. Nothing of a configuration with a fault is used.
//   - A key that is not known is a fault, and so is one that is given twice.
//   - Defaults are with the component that uses them. This package composes the Configs of the
//     components, and adds what concerns several of them: references between sections, and files
//     that must exist.
//   - It holds no secret. Secrets are in files of their own, which the configuration names.
//
// A component reports its faults by a Validate method. It returns an error of kind Invalid, or
// several joined by errors.Join. Each begins with its key, relative to the component's section.
package config
