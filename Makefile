# The commands of the README and their prerequisites.

CARGO ?= cargo

.PHONY: demo test bench build check soak deps clean install uninstall deb

# Does the main jobs on real input and shows the results. Builds the program alone and, unless it is
# there already, without images on other hosts and without TLS: a fifth of the build's time.
demo:
	./scripts/deps demo
	$(CARGO) build --release --locked --package pagefold $(shell \
	  target/release/pagefold push --help >/dev/null 2>&1 || echo --no-default-features)
	./scripts/demo

# The program that `make build` made, its manual, completions, units and configuration. PREFIX is
# /usr/local unless it is given; DESTDIR is put before all paths.
install:
	DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" ./scripts/install

uninstall:
	DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" ./scripts/install --uninstall

# A Debian package of them in target/.
deb: build
	./scripts/deb

# Everything that must pass before a change is merged.
test: deps
	./scripts/test

# The quick part of it, for use between commits.
check:
	./scripts/check

# Longer tests: more than two hours.
soak: deps
	./scripts/soak

# One page with every table, compared with the peers that this machine has (docs/report.md). REPORT
# passes further options, such as --quick.
bench: deps build
	PATH="$(CURDIR)/target/peers/bin:$$PATH" ./target/release/pagefold-bench report $(REPORT) -o target/report.md

# The program and its benches.
build:
	./scripts/deps build
	$(CARGO) build --release --locked

# Programs and libraries that the tests and the benches use.
deps:
	./scripts/deps

clean:
	$(CARGO) clean
