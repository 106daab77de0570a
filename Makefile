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
	@tools/setup.sh cuda && $(MAKE) --no-print-directory gpu-programs gpu
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
NVCC_FLAGS := -std=c++20 -O3 -Isrc -gencode=arch=compute_90a,code=sm_90a -Xcompiler -fPIC
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(shell command -v $(NVCC)))
GPU_PROGRAMS := build-gpu/bench_decode build-gpu/bench_extend build-gpu/bench_mixed build-gpu/bench_sampler build-gpu/bench_device \
  build-gpu/bench_fill build-gpu/bench_linear

.PHONY: gpu-programs gpu-check gpu-bench
gpu-programs: $(GPU_PROGRAMS)

build-gpu/bench_decode build-gpu/bench_extend build-gpu/bench_mixed: build-gpu/bench_%: build-gpu/bench_%.o \
  build-gpu/attention_decode.o build-gpu/attention_extend_hopper.o
build-gpu/bench_linear: build-gpu/linear_decode.o build-gpu/bench_linear.o
build-gpu/bench_sampler: build-gpu/sampler.o build-gpu/sampler_scan.o build-gpu/bench_sampler.o \
  build-gpu/host_sampler.o build-gpu/host_vocab_ops.o
build-gpu/bench_fill: build-gpu/random_fill.o build-gpu/bench_fill.o
build-gpu/bench_device: build-gpu/device_gpu_clock.o build-gpu/bench_device.o \
  $(patsubst src/%.cpp,build-gpu/plugin/%.o,$(wildcard src/device/cuda/*.cpp))
$(GPU_PROGRAMS):
	@$(NVCC) $(NVCC_FLAGS) -cudart static $^ -o $@
build-gpu/%.o: src/kernels/cuda/%.cu
	@mkdir -p build-gpu && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
build-gpu/%.o: bench/cuda/%.cu
	@mkdir -p build-gpu && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
build-gpu/host_%.o: src/sampler/%.cpp
	@mkdir -p build-gpu && $(CXX) -std=c++20 -O3 -Isrc -MD -MF $(@:.o=.d) -c $< -o $@
-include $(wildcard build-gpu/*.d)

# The CUDA backend as the binary loads it: every kernel and what of the host's code it needs, hidden but for one symbol.
PLUGIN := $(BUILD)/libtailrace_cuda.so
PLUGIN_CXX := $(CXX) -std=c++20 -O2 -Wall -Wextra -Wno-unused-parameter -fPIC -fvisibility=hidden -Isrc
PLUGIN_HOST := $(filter-out %_test.cpp,$(wildcard src/device/cuda/*.cpp src/kernels/cuda/*.cpp))
PLUGIN_OBJECTS := $(patsubst src/kernels/cuda/%.cu,build-gpu/%.o,$(wildcard src/kernels/cuda/*.cu)) \
  $(patsubst src/device/cuda/%.cu,build-gpu/device_%.o,$(wildcard src/device/cuda/*.cu)) \
  $(patsubst src/%.cpp,build-gpu/plugin/%.o,$(PLUGIN_HOST))

.PHONY: gpu gpu-bundle
gpu: $(PLUGIN) ## build/libtailrace_cuda.so, which ./build/tailrace then loads; needs nvcc and g++ alone

$(PLUGIN): $(PLUGIN_OBJECTS)
	@mkdir -p $(BUILD) && $(CXX) -shared -static-libstdc++ -static-libgcc -Wl,--no-undefined \
	  -Wl,--version-script=src/device/cuda/plugin.map $^ \
	  -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -o $@
build-gpu/device_%.o: src/device/cuda/%.cu
	@mkdir -p build-gpu && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
build-gpu/plugin/%.o: src/%.cpp
	@mkdir -p $(@D) && $(PLUGIN_CXX) -isystem $(CUDA_HOME)/include -MD -MF $(@:.o=.d) -c $< -o $@
-include $(wildcard build-gpu/plugin/*/*.d build-gpu/plugin/*/*/*.d)

# What a GPU machine without this checkout needs: kernel checks, the engine on token ids, tiny models, one script.
BUNDLE_MIB := 48
gpu-bundle: gpu-programs gpu ## bundle/: everything to check and measure on a GPU machine, 48 MiB at most
	@$(CMAKE_CONFIGURE) -B $(BUILD) -DTAILRACE_TESTS=ON >/dev/null
	@$(NINJA) -C $(BUILD) tailrace_ids goldens_test gguf_golden_test
	@rm -rf bundle && mkdir -p bundle/models
	@cp $(GPU_PROGRAMS) $(BUILD)/tailrace_ids $(PLUGIN) $(addprefix $(BUILD)/tests/engine/,goldens_test gguf_golden_test) bundle/ && find bundle -type f -exec strip {} +
	@cp tools/gpu_check.sh bundle/check.sh && cp -r $(wildcard tests/goldens/gguf_*) $(BUNDLE_MODELS) bundle/models/
	@cp -r bench/shapes configs tests/goldens bundle/
	@size=$$(du -sm bundle | cut -f1); echo "bundle/: $$size MiB"; test $$size -le $(BUNDLE_MIB)

gpu-check: gpu-bundle ## on a machine with an NVIDIA GPU: each CUDA kernel against float64, the engine's answers, contracts
	@bundle/check.sh

gpu-bench: gpu-programs ## on a machine with an NVIDIA GPU: the tables of bench/BASELINES.md
	@build-gpu/bench_decode bench && build-gpu/bench_extend bench && build-gpu/bench_mixed bench && \
	  build-gpu/bench_sampler bench && build-gpu/bench_device bench && \
	  build-gpu/bench_fill bench && build-gpu/bench_linear bench

clean: ## remove what was built; models and virtual environments stay
	rm -rf build build-asan build-tsan build-fuzz build-gpu bundle
