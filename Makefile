# One door to the project; `make help` lists the targets. Set-up, build and checks all start here.
SHELL := /bin/bash
BUILD := build
NINJA := ninja
CMAKE_CONFIGURE := cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
FUZZ_SECONDS := 10
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Paths are cached relative to the checkout, so that a clone in another folder finds what this one compiled.
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := true

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
	@tools/setup.sh cuda && $(MAKE) --no-print-directory gpu-programs
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

# CUDA kernels: nvcc and g++ alone, so that a GPU machine needs nothing else. Hopper first.
NVCC = $(firstword $(wildcard /usr/local/cuda/bin/nvcc .cuda/toolkit/bin/nvcc) nvcc)
NVCC_FLAGS := -std=c++20 -O3 -Isrc -gencode=arch=compute_90a,code=sm_90a
GPU_PROGRAMS := build-gpu/bench_decode build-gpu/bench_extend build-gpu/bench_sampler

.PHONY: gpu-programs gpu-check gpu-bench
gpu-programs: $(GPU_PROGRAMS)

build-gpu/bench_decode: build-gpu/attention_decode.o build-gpu/bench_decode.o
build-gpu/bench_extend: build-gpu/attention_extend_hopper.o build-gpu/bench_extend.o
build-gpu/bench_sampler: build-gpu/sampler.o build-gpu/sampler_scan.o build-gpu/bench_sampler.o \
  build-gpu/host_sampler.o build-gpu/host_vocab_ops.o
$(GPU_PROGRAMS):
	@$(NVCC) $(NVCC_FLAGS) -cudart static $^ -o $@
build-gpu/%.o: src/kernels/cuda/%.cu
	@mkdir -p build-gpu && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
build-gpu/%.o: bench/cuda/%.cu
	@mkdir -p build-gpu && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
build-gpu/host_%.o: src/sampler/%.cpp
	@mkdir -p build-gpu && $(CXX) -std=c++20 -O3 -Isrc -MD -MF $(@:.o=.d) -c $< -o $@
-include $(wildcard build-gpu/*.d)

gpu-check: gpu-programs ## on a machine with an NVIDIA GPU: each CUDA kernel against float64
	@build-gpu/bench_decode check && build-gpu/bench_extend check && build-gpu/bench_sampler check

gpu-bench: gpu-programs ## on a machine with an NVIDIA GPU: the tables of bench/BASELINES.md
	@build-gpu/bench_decode bench && build-gpu/bench_extend bench && build-gpu/bench_sampler bench

clean: ## remove what was built; models and virtual environments stay
	rm -rf build build-asan build-tsan build-fuzz build-gpu
