# pinfold's build. On a fresh Debian machine with Go and a C compiler, `make demo`
# and `make test` (as root) install what else they need from the distribution.

GO      ?= go
PINIT   := runtime/host/pinit/pinit.bin
STARTER := runtime/host/starter/program/starter.bin
# netgo and osusergo: the same resolver code everywhere, and a faster start; the
# last: help without text templates, 2.5 MB less.
TAGS    := netgo,osusergo,urfave_cli_no_template

.PHONY: all build deps demo test crash chaos test-race properties bench fuzz lab lab-full lab-parts clean man install FORCE

all: build

LDFLAGS := -s -w -linkmode external -extldflags "-static"
GOBUILD := $(GO) build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)'

build: deps $(PINIT) $(STARTER)
	$(GOBUILD) -o bin/pinfold ./cmd/pinfold

$(PINIT): runtime/host/pinit/src/pinit.c runtime/host/pinit/Makefile
	$(MAKE) -C runtime/host/pinit

# Go itself knows whether it is up to date.
$(STARTER): FORCE
	$(GOBUILD) -o $@ ./runtime/host/starter/program
FORCE:

# What the build, the demo and the tests need besides Go: a C compiler, a small
# libc for PID 1, and the tools with which tests look at the host from outside.
deps:
	@sh ./testdata/deps.sh gcc=gcc musl-gcc=musl-tools ip=iproute2 nft=nftables git=git mandoc=mandoc zsh=zsh fish=fish

demo: build
	sh ./examples/quickstart/demo.sh ./bin/pinfold

# Property tests draw the same inputs in every run here, so that a result can be
# repeated; make properties draws others, and many.
test: build
	$(GO) vet ./...
	RAPID_SEED=1 $(GO) test -count=1 -timeout 20m ./...
	@$(MAKE) --no-print-directory crash CRASH= CRASHRUN=TestKilledAtEachPoint

# Kills and failures at each step that touches the host or the state. make test kills
# at each step once, and lets each step of the runtime fail; here each step of each
# verb is killed at, and fails: some thousand runs. CRASH= does each step once.
CRASH ?= full
CRASHRUN ?= .
crash: deps $(PINIT) $(STARTER)
	$(GO) vet -tags failpoints ./runtime/... ./reconcile/...
	PINFOLD_CRASH=$(CRASH) $(GO) test -count=1 -timeout 5h -tags failpoints -run 'Fail$$|Fails$$' ./runtime/host
	@mkdir -p bin; echo "$(GO) test -tags failpoints ./reconcile/onhost/crash"
	@PINFOLD_CRASH=$(CRASH) $(GO) test -count=1 -timeout 5h -tags failpoints -run '$(CRASHRUN)' -v ./reconcile/onhost/crash >bin/crash.log 2>&1; code=$$?; \
		grep -E -- '^ *--- FAIL| runs|PINFOLD_SEED|^(ok|FAIL|panic)' bin/crash.log; \
		[ $$code = 0 ] || { tail -n 300 bin/crash.log; exit $$code; }

# Everything that can go wrong on a host, at random; CHAOS seconds of it.
CHAOS ?= 600
chaos: build
	PINFOLD_CHAOS=$(CHAOS) $(GO) test -count=1 -timeout 5h -v -run 'TestChaos$$' ./reconcile/onhost

test-race: deps $(PINIT) $(STARTER)
	$(GO) test -race -count=1 -timeout 30m ./config/... ./state/... ./reconcile/... ./runtime/sim/...

# Built as the program itself is; each part a process of its own, so that one
# part's memory is not counted as another's.
bench: build
	@sh ./testdata/deps.sh runc=runc
	$(GOBUILD) -o bin/bench/bench ./testdata/bench
	@for part in plan create apply lifecycle exhaust; do ./bin/bench/bench -pinfold ./bin/pinfold -only $$part || exit 1; done
	@echo "simulated host: 1,000 due at one instant (bar 100 ms), an idle agent's CPU with 1,000 (bar 0.5 %)"
	@$(GO) test -run '^$$' -bench ThousandDue ./reconcile | grep ^Bench
	@$(GO) test -run '^$$' -bench IdleAgent -benchtime 1x ./reconcile | grep ^Bench

# Property tests of the pure parts with CHECKS random inputs each.
CHECKS ?= 20000
properties: deps $(PINIT) $(STARTER)
	RAPID_CHECKS=$(CHECKS) $(GO) test -count=1 -timeout 60m ./reconcile/plan ./runtime/sim

# Fuzzes the language, modules included, and the planner, each for a while; FUZZTIME=10m
# for a long one. Time, runs and the size of the corpus are printed as it goes.
FUZZTIME ?= 30s
fuzz: $(PINIT) $(STARTER)
	$(GO) test ./config -run '^$$' -fuzz FuzzEvaluate -fuzztime $(FUZZTIME) -fuzzminimizetime 10x
	$(GO) test ./config -run '^$$' -fuzz FuzzAddress -fuzztime $(FUZZTIME) -fuzzminimizetime 10x
	$(GO) test ./reconcile/plan -run '^$$' -fuzz FuzzPlan -fuzztime $(FUZZTIME) -fuzzminimizetime 10x
	$(GO) test ./reconcile -run '^$$' -fuzz FuzzPush -fuzztime $(FUZZTIME) -fuzzminimizetime 10x
	$(GO) test ./cmd/cli -run '^$$' -fuzz FuzzSavedPlan -fuzztime $(FUZZTIME) -fuzzminimizetime 10x
	$(GO) test ./cmd/cli -run '^$$' -fuzz FuzzConsole -fuzztime $(FUZZTIME) -fuzzminimizetime 10x

# A machine of its own, emulated, with the distribution's kernel and cgroup v2 only:
# the tests of the real kernel run in it, and then its power is cut in the middle of
# work, again and again. docs/lab.md has more. LABFLAGS=-seed=N repeats a run.
LABFLAGS ?=
LABPARTS := bin/lab/parts

lab: lab-parts
	./bin/lab/lab $(LABFLAGS)

lab-full: LABFORM := -full
lab-full: lab-parts
	./bin/lab/lab -full $(LABFLAGS)

lab-parts: build
	@sh ./testdata/deps.sh qemu-system-x86_64=qemu-system-x86 mmdebstrap=mmdebstrap mke2fs=e2fsprogs
	$(GO) vet ./testdata/lab ./testdata/lab/guest
	$(GO) test ./testdata/lab/guest
	$(GO) build -trimpath -o bin/lab/lab ./testdata/lab
	$(GOBUILD) -o $(LABPARTS)/guest ./testdata/lab/guest
	cp bin/pinfold $(LABPARTS)/pinfold
	@for suite in $$(./bin/lab/lab $(LABFORM) -print-suites); do \
		echo "building the tests of $$suite"; \
		$(GO) test -c -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)' -o $(LABPARTS)/$$(echo $$suite | tr / -).test ./$$suite || exit 1; \
	done

# A manual page for each command, of the same words as its -help.
man: build
	rm -rf bin/man && ./bin/pinfold help -man bin/man

install: man
	install -D -m 0755 bin/pinfold $(DESTDIR)/usr/local/bin/pinfold
	install -d $(DESTDIR)/usr/local/share/man/man1
	install -m 0644 bin/man/*.1 $(DESTDIR)/usr/local/share/man/man1
	./bin/pinfold completion bash | install -D -m 0644 /dev/stdin $(DESTDIR)/usr/local/share/bash-completion/completions/pinfold
	./bin/pinfold completion zsh | install -D -m 0644 /dev/stdin $(DESTDIR)/usr/local/share/zsh/site-functions/_pinfold
	./bin/pinfold completion fish | install -D -m 0644 /dev/stdin $(DESTDIR)/usr/local/share/fish/vendor_completions.d/pinfold.fish
	install -D -m 0644 docs/pinfold.service $(DESTDIR)/etc/systemd/system/pinfold.service

clean:
	rm -rf bin $(STARTER)
	$(MAKE) -C runtime/host/pinit clean
