// A program of somebody else's, which embeds the reconciler. A test copies this directory out of the
// repository and builds it there.
module example.com/embed

go 1.26

require github.com/ironherd/ironherd v0.0.0

replace github.com/ironherd/ironherd => ../..
