# The two commands of the README, and what they are made of.

CARGO ?= cargo

.PHONY: demo test build deps clean

# Does the main job on real input and shows the result.
demo: build
	./scripts/demo

# Everything that must hold before a change lands.
test: deps
	./scripts/test

build: deps
	$(CARGO) build --release --locked

# Programs and libraries that the demo, the tests and the benches use.
deps:
	./scripts/deps

clean:
	$(CARGO) clean
