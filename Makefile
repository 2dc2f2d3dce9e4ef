# The front door. `make help` lists what there is; the work is done by meson and by the scripts
# named here, each of which also runs on its own.

PREFIX ?= /usr/local
DESTDIR ?=
# Parts of the suite for `make test`, in order; see tests/run --help.
PART ?=
# Seconds per target for `make fuzz`.
FUZZ_SECONDS ?= 60
# Anything: `make bench` measures less of everything.
QUICK ?=

.DEFAULT_GOAL := help
.PHONY: help build run demo test test-nightly test-k8s test-vm bench lint fuzz install clean \
	deps-build deps-run deps-test \
	sandbox-build-basic sandbox-build-full sandbox-test sandbox-clean test-local-mode test-sandbox-mode dev-full

help: ## this list
	@echo 'Paddock: runs code that nobody has reviewed.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'Missing Debian packages are installed when you may (root or sudo), or named.'

deps-build:
	@scripts/install-deps build

deps-run:
	@scripts/install-deps build run

deps-test:
	@scripts/install-deps build test

build: deps-build ## build/paddock, build/paddockd (the server), build/paddock-remote (brokers)
	@scripts/configure release >/dev/null
	@ninja -C build --quiet
	@scripts/configure server >/dev/null
	@ninja -C build-server --quiet
	@ln -sf ../build-server/paddockd build/paddockd
	@ln -sf ../build-server/paddock-remote build/paddock-remote

run: deps-run build ## the server on 127.0.0.1:8090, with three lines to paste
	@scripts/run-server

demo: build ## a short demonstration of what a jail holds off
	@scripts/demo build/paddock

test: deps-test ## everything; `make test PART="unit lint"` for some of it
	@$(if $(PART),,scripts/install-deps --optional vm)
	@$(if $(PART),,scripts/install-deps --optional engines)
	@$(if $(PART),,scripts/install-deps --optional cells)
	@$(if $(PART),,scripts/install-deps --optional chromium)
	@tests/run $(PART)

test-nightly: deps-test ## the same with long races, every attack in the VM, long fuzz, ThreadSanitizer
	@scripts/install-deps vm nightly engines cells arm64
	@PADDOCK_NIGHTLY=1 tests/run

test-vm: deps-test ## end-to-end and security tests on a stock Debian kernel in QEMU
	@scripts/install-deps vm
	@tests/run vm

test-k8s: deps-test ## provider kubernetes on a real kube-apiserver (needs Go, its module proxy and etcd)
	@command -v etcd >/dev/null || { echo 'etcd is missing: apt-get install etcd-server'; exit 1; }
	@PADDOCK_KUBE_APISERVER=$$(tests/kube/build build-kube) /usr/bin/python3 -m pytest -q tests/backends/test_kubernetes.py

sandbox-build-basic: ## the image of the tier basic; REQUIREMENTS=file: other Python packages
	@scripts/sandbox-image build basic

sandbox-build-full: ## the image of the tier full
	@scripts/sandbox-image build full

sandbox-test: ## tries the images that were built, and the size of basic
	@scripts/sandbox-image test

sandbox-clean: ## removes them
	@scripts/sandbox-image clean

test-local-mode: build ## a command without isolation: paddock run --provider local
	@build/paddock run --provider local -- sh -c 'echo local mode works'

test-sandbox-mode: build ## a command in a jail: paddock run
	@build/paddock run -- sh -c 'echo sandbox mode works'

dev-full: build sandbox-build-basic sandbox-build-full sandbox-test ## builds everything, with the images of both tiers

bench: build ## speed and memory, beside bubblewrap, crun and runc; QUICK=1: less of everything
	@scripts/install-deps bench
	@$(if $(QUICK),:,command -v dockerd >/dev/null || scripts/install-deps --optional docker)
	@$(if $(QUICK),:,command -v skopeo >/dev/null || scripts/install-deps --optional pulls)
	@tests/bench/run $(if $(QUICK),--quick)

lint: deps-test ## format, include rules, file sizes, shell scripts, man pages
	@tests/run lint

fuzz: deps-test ## each fuzz target for FUZZ_SECONDS (60)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) tests/run fuzz

install: build ## into PREFIX (/usr/local), below DESTDIR
	@/usr/bin/meson configure build -Dprefix='$(abspath $(PREFIX))'
	@/usr/bin/meson configure build-server -Dprefix='$(abspath $(PREFIX))'
	@DESTDIR='$(DESTDIR)' /usr/bin/meson install -C build --quiet
	@DESTDIR='$(DESTDIR)' /usr/bin/meson install -C build-server --quiet --tags server,lib,devel

clean: ## removes every build directory
	rm -rf build build-*
