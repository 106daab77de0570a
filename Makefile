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
	@tools/fetch_templates.sh
	@$(CMAKE_CONFIGURE) -B $(BUILD) -DTAILRACE_TESTS=ON -DTAILRACE_CHECK=ON -DTAILRACE_FUZZ_SECONDS=$(FUZZ_SECONDS)
	@$(NINJA) -C $(BUILD)
	@$(CMAKE_CONFIGURE) -B build-asan -DTAILRACE_SANITIZE=address && $(NINJA) -C build-asan sanitized_tests
	@$(CMAKE_CONFIGURE) -B build-tsan -DTAILRACE_SANITIZE=thread && $(NINJA) -C build-tsan sanitized_tests
	@$(MAKE) --no-print-directory fuzzers
	@tools/setup.sh cuda && $(MAKE) -j 2 --no-print-directory gpu-programs gpu gpu-portable
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

# CUDA kernels: nvcc and g++ alone, so that a GPU machine needs nothing else. GPU_ARCHS says what they are compiled for: machine
# code (80: also 8.6 and 8.7; 90a: Hopper with its own instructions) or ptxNN, which a driver compiles for any later GPU. One
# folder of objects for each choice.
GPU_ARCHS := 90a
GPU_BUILD := build-gpu
RELEASE_ARCHS := 80 89 90a 120 ptx80
GPU_GENCODE = $(foreach a,$(filter-out ptx%,$(GPU_ARCHS)),-gencode=arch=compute_$(a),code=sm_$(a)) \
  $(foreach a,$(patsubst ptx%,%,$(filter ptx%,$(GPU_ARCHS))),-gencode=arch=compute_$(a),code=compute_$(a))
NVCC = $(firstword $(wildcard /usr/local/cuda/bin/nvcc .cuda/toolkit/bin/nvcc) nvcc)
NVCC_FLAGS = -std=c++20 -O3 -Isrc $(GPU_GENCODE) -Xcompiler -fPIC --compress-mode=size
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(shell command -v $(NVCC)))
GPU_PROGRAMS := $(GPU_BUILD)/bench_decode $(GPU_BUILD)/bench_extend $(GPU_BUILD)/bench_mixed $(GPU_BUILD)/bench_sampler $(GPU_BUILD)/bench_device \
  $(GPU_BUILD)/bench_fill $(GPU_BUILD)/bench_linear $(GPU_BUILD)/bench_experts $(GPU_BUILD)/bench_gated_delta \
  $(GPU_BUILD)/bench_portable

.PHONY: gpu-programs gpu-check gpu-bench
gpu-programs: $(GPU_PROGRAMS)

$(addprefix $(GPU_BUILD)/bench_,decode extend mixed portable): $(GPU_BUILD)/bench_%: $(GPU_BUILD)/bench_%.o \
  $(addprefix $(GPU_BUILD)/,attention_plan.o attention_decode.o attention_decode_fp8.o attention_extend_hopper.o \
    attention_extend_hopper_fp8.o device_gpu_code.o)
$(GPU_BUILD)/bench_linear: $(addprefix $(GPU_BUILD)/,linear_decode.o linear_wide.o token_ops.o device_gpu_code.o bench_linear.o) \
  $(addprefix $(GPU_BUILD)/plugin/kernels/cuda/,gemm_lt.o tensor_map.o)
$(GPU_BUILD)/bench_experts: $(addprefix $(GPU_BUILD)/,moe_route.o experts_few.o experts_many.o random_fill.o device_gpu_code.o device_gpu_clock.o \
  bench_experts.o experts_speed.o) $(addprefix $(GPU_BUILD)/plugin/kernels/cuda/,cuda_experts.o expert_form.o tensor_map.o) $(GPU_BUILD)/plugin/device/cuda/cuda_core.o
$(GPU_BUILD)/bench_sampler: $(GPU_BUILD)/sampler.o $(GPU_BUILD)/sampler_scan.o $(GPU_BUILD)/device_gpu_code.o $(GPU_BUILD)/bench_sampler.o \
  $(GPU_BUILD)/host_sampler.o $(GPU_BUILD)/host_vocab_ops.o
$(GPU_BUILD)/bench_portable: $(GPU_BUILD)/attention_portable.o $(GPU_BUILD)/attention_portable_fp8.o
$(GPU_BUILD)/bench_gated_delta: $(addprefix $(GPU_BUILD)/,gated_delta_decode.o gated_delta_extend.o device_gpu_code.o bench_gated_delta.o)
$(GPU_BUILD)/bench_fill: $(GPU_BUILD)/random_fill.o $(GPU_BUILD)/bench_fill.o
$(GPU_BUILD)/bench_device: $(GPU_BUILD)/device_gpu_clock.o $(GPU_BUILD)/device_read_bandwidth.o $(GPU_BUILD)/bench_device.o \
  $(patsubst src/%.cpp,$(GPU_BUILD)/plugin/%.o,$(wildcard src/device/cuda/*.cpp))
$(GPU_PROGRAMS):
	@$(NVCC) $(NVCC_FLAGS) -cudart static -Xcompiler -static-libstdc++,-static-libgcc $^ -o $@
$(GPU_BUILD)/%.o: src/kernels/cuda/%.cu
	@mkdir -p $(GPU_BUILD) && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
$(GPU_BUILD)/%.o: bench/cuda/%.cu
	@mkdir -p $(GPU_BUILD) && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
$(GPU_BUILD)/host_%.o: src/sampler/%.cpp
	@mkdir -p $(GPU_BUILD) && $(CXX) -std=c++20 -O3 -Isrc -MD -MF $(@:.o=.d) -c $< -o $@
$(addprefix $(GPU_BUILD)/,attention_decode.o attention_decode_fp8.o attention_extend_hopper.o \
  attention_extend_hopper_fp8.o linear_wide.o experts_many.o gated_delta_decode.o): override GPU_ARCHS := 90a
-include $(wildcard $(GPU_BUILD)/*.d)

# The CUDA backend as the binary loads it: every kernel and what of the host's code it needs, hidden but for one symbol.
PLUGIN := $(BUILD)/libtailrace_cuda.so
PLUGIN_CXX := $(CXX) -std=c++20 -O2 -Wall -Wextra -Wno-unused-parameter -fPIC -fvisibility=hidden -Isrc \
  -DTAILRACE_GPU_ARCHS='"$(GPU_ARCHS)"'
PLUGIN_HOST := src/kernels/cuda_abi.cpp $(filter-out %_test.cpp,$(wildcard src/device/cuda/*.cpp src/kernels/cuda/*.cpp))
PLUGIN_OBJECTS := $(patsubst src/kernels/cuda/%.cu,$(GPU_BUILD)/%.o,$(wildcard src/kernels/cuda/*.cu)) \
  $(patsubst src/device/cuda/%.cu,$(GPU_BUILD)/device_%.o,$(wildcard src/device/cuda/*.cu)) \
  $(patsubst src/%.cpp,$(GPU_BUILD)/plugin/%.o,$(PLUGIN_HOST))

.PHONY: gpu gpu-bundle gpu-portable release
gpu: $(PLUGIN) ## build/libtailrace_cuda.so, which ./build/tailrace then loads; needs nvcc and g++ alone

# `gpu` and `release` make the same file from other objects: what it was made of stands beside it, as times alone do not tell.
$(PLUGIN).of: always
	@mkdir -p $(@D) && echo "$(GPU_BUILD) $(GPU_ARCHS)" | cmp -s - $@ || echo "$(GPU_BUILD) $(GPU_ARCHS)" > $@
.PHONY: always
$(PLUGIN): $(PLUGIN_OBJECTS) $(PLUGIN).of
	@mkdir -p $(BUILD) && $(CXX) -shared -static-libstdc++ -static-libgcc -Wl,--no-undefined \
	  -Wl,--version-script=src/device/cuda/plugin.map $(PLUGIN_OBJECTS) \
	  -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -o $@
$(GPU_BUILD)/device_%.o: src/device/cuda/%.cu
	@mkdir -p $(GPU_BUILD) && $(NVCC) $(NVCC_FLAGS) -MD -MF $(@:.o=.d) -c $< -o $@
$(GPU_BUILD)/plugin/%.o: src/%.cpp
	@mkdir -p $(@D) && $(PLUGIN_CXX) -isystem $(CUDA_HOME)/include -MD -MF $(@:.o=.d) -c $< -o $@
$(GPU_BUILD)/plugin/kernels/cuda_abi.o: PLUGIN_CXX += -DTAILRACE_SEAM_STAMP='"$(shell tools/seam_stamp.sh)"'
-include $(wildcard $(GPU_BUILD)/plugin/*/*.d $(GPU_BUILD)/plugin/*/*/*.d)

release: ## the same for GPUs of compute capability 8.0, 8.6, 8.9, 9.0, 12.0 and, compiled by their driver, others from 8.0 on
	@tools/setup.sh cuda
	@$(MAKE) --no-print-directory GPU_BUILD=build-gpu-release GPU_ARCHS="$(RELEASE_ARCHS)" gpu

gpu-portable: # that the kernels still compile for what lacks Hopper's instructions
	@$(MAKE) --no-print-directory GPU_BUILD=build-gpu-80 GPU_ARCHS=80 PLUGIN=build-gpu-80/libtailrace_cuda.so gpu

# What a GPU machine without this checkout needs: kernel checks, the engine on token ids, tiny models, one script. Built in a tree
# without the server, which asks for neither Rust nor Boost.
BUNDLE_MIB := 48
IDS_BUILD := build-ids
gpu-bundle: gpu-programs gpu ## bundle/: everything to check and measure on a GPU machine, 48 MiB at most
	@$(CMAKE_CONFIGURE) -B $(IDS_BUILD) -DTAILRACE_SERVER=OFF -DTAILRACE_TESTS=ON >/dev/null
	@$(NINJA) -C $(IDS_BUILD) tailrace_ids gpu_engine_test
	@rm -rf bundle && mkdir -p bundle/models
	@cp $(GPU_PROGRAMS) $(IDS_BUILD)/tailrace_ids $(PLUGIN) $(IDS_BUILD)/tests/engine/gpu_engine_test bundle/ && find bundle -type f -exec strip {} +
	@cp tools/gpu_check.sh bundle/check.sh
	@$(if $(BUNDLE_MODELS),cp -r $(BUNDLE_MODELS) bundle/models/)
	@cp -r bench/shapes configs tests/goldens bundle/
	@size=$$(du -sm bundle | cut -f1); echo "bundle/: $$size MiB"; test $$size -le $(BUNDLE_MIB)

gpu-check: gpu-bundle ## on a machine with an NVIDIA GPU: each CUDA kernel against float64, the engine's answers, contracts
	@bundle/check.sh

gpu-bench: gpu-bundle ## on a machine with an NVIDIA GPU: the tables of bench/BASELINES.md
	@bundle/check.sh bench

clean: ## remove what was built; models and virtual environments stay
	rm -rf build build-asan build-tsan build-fuzz build-gpu build-gpu-* $(IDS_BUILD) bundle
