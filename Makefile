# One door to the project; `make help` lists the targets. Set-up, build and checks all start here.
SHELL := /bin/bash
BUILD := build
NINJA := ninja
CMAKE_CONFIGURE := cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
FUZZ_SECONDS := 10
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help build demo check fuzz bench-cpu clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# A tree that `make check` configured keeps its tests: only the one target is built here.
build: ## ./build/tailrace, after installing what the build needs
	@tools/setup.sh demo
	@test -f $(BUILD)/build.ninja || $(CMAKE_CONFIGURE) -B $(BUILD) -DTAILRACE_TESTS=OFF
	@$(NINJA) -C $(BUILD) tailrace

demo: ## build, fetch the demo model, serve it and stream one answer
	@tools/demo.sh

check: ## everything that needs no GPU: tests, sanitizers, fuzzers, client tests; ends in ctest's summary
	@tools/setup.sh check
	@tools/fetch_demo_model.sh
	@$(CMAKE_CONFIGURE) -B $(BUILD) -DTAILRACE_TESTS=ON -DTAILRACE_CHECK=ON -DTAILRACE_FUZZ_SECONDS=$(FUZZ_SECONDS)
	@$(NINJA) -C $(BUILD)
	@$(CMAKE_CONFIGURE) -B build-asan -DTAILRACE_SANITIZE=address && $(NINJA) -C build-asan sanitized_tests
	@$(CMAKE_CONFIGURE) -B build-tsan -DTAILRACE_SANITIZE=thread && $(NINJA) -C build-tsan sanitized_tests
	@$(MAKE) --no-print-directory fuzzers
	@ctest --test-dir $(BUILD) --output-on-failure -j 2

.PHONY: fuzzers
fuzzers:
	@$(CMAKE_CONFIGURE) -B build-fuzz -DTAILRACE_SANITIZE=fuzzer -DTAILRACE_TESTS=OFF \
	  -DCMAKE_C_COMPILER=clang-14 -DCMAKE_CXX_COMPILER=clang++-14
	@$(NINJA) -C build-fuzz fuzzers

fuzz: ## the fuzzers alone, for longer: make fuzz FUZZ_SECONDS=600
	@tools/setup.sh check
	@$(MAKE) --no-print-directory fuzzers
	@$(CMAKE_CONFIGURE) -B $(BUILD) -DTAILRACE_TESTS=ON -DTAILRACE_CHECK=ON -DTAILRACE_FUZZ_SECONDS=$(FUZZ_SECONDS)
	@ctest --test-dir $(BUILD) --output-on-failure -j 2 -R '^fuzz/'

bench-cpu: build ## speed beside llama.cpp on the demo model, in one run
	@tools/fetch_demo_model.sh
	@tools/setup.sh bench
	@.venv-bench/bin/python bench/bench_cpu.py

clean: ## remove what was built; models and virtual environments stay
	rm -rf build build-asan build-tsan build-fuzz
