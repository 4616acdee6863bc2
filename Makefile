# `make` prints this help. Everything that CI does is a target here.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
GOBUILD := CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)'
# A package of a commit that has no tag is newer than that of the last tag, and than those of the
# commits before it: dpkg sorts +git… behind the tag alone.
DEB_TAG = $(patsubst v%,%,$(or $(shell git describe --tags --abbrev=0 2>/dev/null),0.0.0))
DEB_NOW = $(DEB_TAG)$(if $(shell git describe --tags --exact-match 2>/dev/null),,+git$(shell TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd.%h))
# The race detector watches us, and not the inside of SQLite, which is C in the form of Go, nor that
# of decoders: tests of a database and of images took three times as long. Who uses a connection or
# a stream is still watched. Nobody debugs these binaries: what a debugger wants is a sixth of the
# compiler's work.
RACE    := -race -gcflags=all=-dwarf=false $(foreach p,modernc.org/... github.com/klauspost/compress/... github.com/ulikunitz/xz/...,"-gcflags=$(p)=-race=false -dwarf=false")
# Tests without it: those that read the source, those that drive programs and virtual machines, and
# those that do one thing after the other with what other tests do at once.
UNRACED := ./internal/bmdb/bmdbtest/calls ./internal/bmdb/bmdbtest/model ./test/leases
# And those whose tests run the go command: what it reads, the cache of test results does not see.
GO_RUN  := ./internal/arch ./test ./test/machine ./test/mutants
# What needs no race detector is compiled as the binaries are, so that most of it is compiled already.
PLAIN   := CGO_ENABLED=0 GOFLAGS="$${GOFLAGS-} -trimpath" go
# A rehearsal holds a few MiB at a time: at the usual rate a quarter of its time is garbage collection.
SEEDS_GC := GOGC=400
# What goes to every machine is small: no html/template by way of gRPC's traces, no second HTTP/2.
AGENT   := $(GOBUILD) -tags grpcnotrace,nethttpomithttp2
TOOL     = go tool -modfile=tools/$(1)/go.mod $(1)

.PHONY: help
help: ## Show this help
	@echo "Ironherd: a bare-metal control plane."
	@echo
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build ## Bring up a fleet of 12 simulated machines, here, in under a minute (ARGS="--machines 50")
	@bin/ironherd demo $(ARGS)

.PHONY: build
build: ## Build the binaries into bin/
	@mkdir -p bin
	@$(AGENT) -o bin/ironherd-agent ./cmd/ironherd-agent
	@$(GOBUILD) -o bin/ironherd ./cmd/ironherd
	@$(GOBUILD) -o bin/ironherd-reconciler ./cmd/ironherd-reconciler

.PHONY: agents
agents: ## Build the agent for every architecture into bin/, where the control plane finds them
	@mkdir -p bin
	@for arch in amd64 arm64; do GOARCH=$$arch $(AGENT) -o bin/ironherd-agent-$$arch ./cmd/ironherd-agent; done

.PHONY: deb
deb: build agents ## Make the Debian package of the control plane in bin/, in the place of any other (version: the last tag's, and the commit; DEB_VERSION=1.2.3)
	@rm -f bin/ironherd_*.deb
	@BIN=bin ARCH=$$(go env GOARCH) VERSION=$(or $(DEB_VERSION),$(DEB_NOW)) \
		$(call TOOL,nfpm) package --config deploy/deb/nfpm.yaml --packager deb --target bin/

.PHONY: setup
setup: ## Install the Debian packages that the tests need (as root; else say what is missing)
	@scripts/setup

.PHONY: kube
kube: ## Build the real Kubernetes API server and etcd that tests start (minutes, once; kept in the user's cache directory)
	@$(PLAIN) run ./test/cluster/prepare

.PHONY: vm-disk
vm-disk: setup ## Build the disk that virtual machines of tests start from, of Debian's packages (as root; minutes, once; kept in the user's cache directory)
	@$(PLAIN) run ./test/machine/prepare

.PHONY: test
test: setup build ## Run every test; with the race detector where races can be (PKG=./internal/bmdb/... for some)
	@$(MAKE) -j 2 kube vm-disk # one computes, the other waits
	@$(PLAIN) vet ./... # so that no test run has to vet again
	@$(MAKE) -j 2 $(if $(PKG),,test-unraced test-bench test-seeds) test-raced

# Many tests wait for programs and for each other: three packages at a time, those that wait most
# come first, and the seeds have what time of the processors is left.
.PHONY: test-raced test-unraced test-bench test-seeds
test-raced:
	@GORACE=atexit_sleep_ms=0 go test $(RACE) -vet=off -p 3 -timeout 25m $(or $(PKG),$$(go list ./... | grep -vxFf <(go list $(UNRACED) $(GO_RUN))))
test-unraced:
	@$(PLAIN) test -vet=off -count=1 -p 3 -timeout 25m $(GO_RUN)
	@$(PLAIN) test -vet=off -count=1 -run 'TestSize|TestResidentMemory' ./internal/agent
	@$(PLAIN) test -vet=off -p 3 -timeout 25m $(UNRACED)
test-bench: # what make bench-bmdb runs, which is a module of its own
	@$(PLAIN) test -C test/bench -vet=off .
test-seeds: # a whole fleet and 1,000 seeds; test-raced has smaller ones
	@nice -n 19 env $(SEEDS_GC) $(PLAIN) test -vet=off -timeout 60m -run 'TestADay|TestSeeds' ./internal/shepherd ./internal/rehearsal

.PHONY: simulate
simulate: ## Rehearse the control plane on N seeds, every fault mixed; one that fails is made smaller, and shown with what replays it (SEEDS=1000 FROM=0)
	@$(SEEDS_GC) $(PLAIN) test -count=1 -timeout 24h -run 'TestSeeds' ./internal/rehearsal -seeds=$(or $(SEEDS),1000) -from=$(or $(FROM),0)

.PHONY: test-vm
test-vm: vm-disk ## A stock Debian on virtual machines is taken over by kexec, installed and booted, and returns when it must; prints each phase (RUN=TestReturns)
	@scripts/setup ipmi_sim openipmi
	@IRONHERD_TEST_VM=1 go test -count=1 -timeout 90m -v -run '$(or $(RUN),.)' ./test/machine ./internal/image | grep --line-buffered -Ev '^=== '

.PHONY: lint
lint: ## Check style: golangci-lint, gofumpt, buf
	@$(call TOOL,golangci-lint) run ./...
	@test -z "$$($(call TOOL,gofumpt) -l $$(git ls-files '*.go' ':!:*.pb.go' ':!:*.connect.go'))" || { echo "not formatted; run: make format"; exit 1; }
	@$(call TOOL,buf) lint

.PHONY: format
format: ## Format the source
	@$(call TOOL,gofumpt) -l -w $$(git ls-files '*.go' ':!:*.pb.go' ':!:*.connect.go')

.PHONY: generate
generate: ## Generate code and reference pages from their sources
	@$(call TOOL,buf) generate --template api/agent/buf.gen.yaml
	@$(call TOOL,buf) generate --template api/fleet/buf.gen.yaml
	@$(call TOOL,sqlc) generate
	@go generate ./...

.PHONY: verify
verify: generate ## Regenerate, and fail if that changes anything
	@git diff --exit-code --stat || { echo "generated files are out of date; commit what 'make generate' made"; exit 1; }

.PHONY: bench
bench: ## Run the benchmarks
	@go test -run '^$$' -bench . -benchmem ./internal/...

.PHONY: bench-reconciler
bench-reconciler: kube ## What keeping 1,241 and 10,000 objects costs, beside a loop that applies everything (SIZES="1241 10000" ARGS="-passes 5")
	@for n in $(or $(SIZES),1241 10000); do go run ./test/kubebench -objects $$n $(ARGS); done

.PHONY: bench-bmdb
bench-bmdb: setup ## Measure the BMDB beside River, raw SQL and itself; prints a table (BENCH="cycle idle" SIZES=1000,100000 ARGS="-rounds 3")
	@go test -C test/bench .
	@go build -C test/bench -ldflags '-X main.version=$(VERSION)' -o $(CURDIR)/bin/bench-bmdb .
	@bin/bench-bmdb $(if $(BENCH),-sections "$(BENCH)") $(if $(SIZES),-sizes "$(SIZES)") $(ARGS)

.PHONY: bench-intake
bench-intake: build agents ## What taking a fleet in costs, world and control plane as processes of their own (SIZES=1350,13500)
	@go run ./test/intakebench -sizes $(or $(SIZES),1350,13500)

.PHONY: bench-start
bench-start: setup ## What starting an agent costs beside a bare loop of x/crypto/ssh, on simulated hosts and on sshd (as root; N=30)
	@go test -run '^$$' -bench StartBesideBare -benchtime $(or $(N),30)x -timeout 1h ./internal/remote

.PHONY: bench-install
bench-install: setup ## What an install costs beside `zstd | dd` and bmaptool, on a loop device (as root; SIZES=4096,1024,16384 ROUNDS=3 DIR=/tmp)
	@go build -o bin/installbench ./test/installbench
	@bin/installbench -sizes $(or $(SIZES),4096,1024,16384) -rounds $(or $(ROUNDS),3) $(if $(DIR),-dir $(DIR))

.PHONY: fuzz
fuzz: ## Run every fuzz target for a while (TIME=30s PKG=internal/agent)
	@scripts/fuzz $(or $(TIME),30s) $(PKG)

.PHONY: torture
torture: build ## Kill the control plane (and the world) N times and check what is left (N=20, BOTH=1 kills both)
	@go run ./test/torture -n $(or $(N),20) $(if $(BOTH),-both)

.PHONY: torture-siege
torture-siege: ## 10,000 hostile connections at a time for a minute, with agents at work beside; prints what they hold (N=10000)
	@go test -count=1 -timeout 15m -v -run 'TestSiege' ./test -siege=$(or $(N),10000) | grep --line-buffered -Ev '^=== '

.PHONY: torture-hands
torture-hands: ## What reaches machines, at full numbers: a fleet loses its power, many creates on a faulty wire, 10,000 starts with a man in the middle (N=10000 for the first two)
	@go test -count=1 -timeout 4h -v -run 'TestPowerIsLost$$' ./internal/shepherd/recoverer -storm=$(or $(N),10000) | grep --line-buffered -Ev '^=== '
	@go test -count=1 -timeout 4h -v -run 'TestManyCreates$$' ./internal/shepherd/provisioner -creates=$(or $(N),10000) | grep --line-buffered -Ev '^=== '
	@go test -count=1 -timeout 4h -v -run 'TestTenThousandStartsAndAManInTheMiddle$$' ./internal/remote | grep --line-buffered -Ev '^=== '

.PHONY: torture-bmdb
torture-bmdb: setup ## The BMDB at length: model, histories, failing calls, processes killed and stopped (CHECKS=1000 HISTORIES=1000 KILLS=200 STOPS=100)
	@go test -count=1 -timeout 4h ./internal/bmdb/bmdbtest/model -rapid.checks=$(or $(CHECKS),1000)
	@go test -count=1 -timeout 4h -v ./internal/bmdb/bmdbtest/linear -histories=$(or $(HISTORIES),1000) | grep --line-buffered -Ev '^=== '
	@go test -count=1 -timeout 1h -v ./internal/bmdb/bmdbtest/calls -stride=1 | grep --line-buffered -Ev '^=== '
	@go run ./test/leases torture -engine sqlite -kills $(or $(KILLS),200) -stops $(or $(STOPS),100)
	@go run ./test/leases torture -engine postgres -kills $(or $(KILLS),200) -stops $(or $(STOPS),100)

.PHONY: torture-upgrade
torture-upgrade: setup ## Upgrade fleets from the previous version (test/upgrade/PREVIOUS), both at work on one PostgreSQL, some killed (ROUNDS=5)
	@go run ./test/upgrade -rounds $(or $(ROUNDS),5) $(ARGS)

.PHONY: mutants
mutants: setup ## Plant every fault of test/mutants/patches in turn; each must be caught (ONLY=fence TESTS=rehearsal JOBS=2)
	@go run ./test/mutants $(if $(ONLY),-only '$(ONLY)')$(if $(TESTS), -tests '$(TESTS)')$(if $(JOBS), -jobs $(JOBS))

.PHONY: torture-reconciler
torture-reconciler: kube ## Kill and stop reconcilers' leaders N times, take etcd's quorum and the API server away for a minute, walk N times through releases in a storm (N=200)
	@IRONHERD_TORTURE_ROUNDS=$(or $(N),200) go test -count=1 -timeout 60m -v -run 'LeaderIsSucceeded' ./reconciler/election | grep --line-buffered -E '^(---|ok|FAIL|    )'
	@IRONHERD_TORTURE_ROUNDS=$(or $(N),200) go test -count=1 -timeout 60m -v -run 'Quorum|Deposed|Replaced' ./reconciler | grep --line-buffered -E '^(---|ok|FAIL|    )'
	@IRONHERD_TORTURE_ROUNDS=$(or $(N),200) go test -count=1 -timeout 60m -v -run 'Outage' ./internal/reconciler/resources | grep --line-buffered -E '^(---|ok|FAIL|    )'
	@IRONHERD_TORTURE_ROUNDS=$(or $(N),200) go test -count=1 -timeout 12h -v -run 'TestWalks' ./test | grep --line-buffered -E '^(---|ok|FAIL|    )'

.PHONY: clean
clean: ## Remove what was built
	@rm -rf bin
