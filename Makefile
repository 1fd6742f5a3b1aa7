# The commands of the README, and what they are made of.

CARGO ?= cargo

.PHONY: demo test bench build check soak deps clean

# Does the main job on real input and shows the result.
demo: build
	./scripts/demo

# Everything that must hold before a change lands.
test: deps
	./scripts/test

# The quick part of it, between two commits.
check:
	./scripts/check

# What takes longer: an hour.
soak: deps
	./scripts/soak

# Every table as one page, next to the peers that this machine has (docs/report.md). REPORT has
# more options, such as --quick.
bench: build
	PATH="$(CURDIR)/target/peers/bin:$$PATH" ./target/release/pagefold-bench report $(REPORT) -o target/report.html

build: deps
	$(CARGO) build --release --locked

# Programs and libraries that the demo, the tests and the benches use.
deps:
	./scripts/deps

clean:
	$(CARGO) clean
