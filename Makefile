# SPDX-License-Identifier: Apache-2.0
# The front door. Each target stands alone: it installs and builds what it needs first, and is quick when nothing changed.
.DEFAULT_GOAL := build
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 600
PYTHON := .venv/bin/python
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export CTEST_PARALLEL_LEVEL := $(JOBS)

.PHONY: help setup build demo test sanitize bench scale fuzz crash dcp peers lint clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## install the system packages and the Python environment in .venv
	@tools/setup.sh build

build: setup ## the program (build/release/bin/infercluster) and the Python package (.venv/bin/python)
	@tools/build.sh release

demo: build ## real weights: loaded, verified, compared and timed
	@$(PYTHON) bench/demo.py

test: setup ## every test of this machine; the last line is "N passed, M failed, K skipped"
	@$(PYTHON) tests/run.py

sanitize: setup ## every C++ test under ASan and UBSan, then under TSan
	@$(PYTHON) tests/run.py --sanitize

bench: build ## ours, our peers and the machine's limit in one go; results in bench/results
	@tools/setup.sh bench
	@$(PYTHON) bench/run.py
	@$(PYTHON) bench/run_checkpoint.py
	@$(PYTHON) bench/run_interference.py
	@$(PYTHON) bench/run_nvme.py

scale: build ## what a checkpoint costs 8 to 16,384 ranks, and how long it takes by a model that is checked here
	@$(PYTHON) bench/run_scale.py

fuzz: setup ## the fuzzer of each codec, and of a live target, for FUZZ_SECONDS (600) under ASan and UBSan
	@tools/setup.sh fuzz
	@tools/build.sh fuzz
	@tools/fuzz.sh $(FUZZ_SECONDS)

crash: build ## the tests that kill a writer at every step, and take objects away from their readers
	@tools/crash.sh

peers: build ## an unmodified Linux as host and as target over NVMe/TCP, in user mode and in QEMU (INFERCLUSTER_PEERS: the folder of the script that makes it)
	@INFERCLUSTER_PEERS_ALL=1 $(PYTHON) -m pytest tests/peers

dcp: build ## torch.distributed.checkpoint, stock and ours: each saved and loaded by 1, 2, 3, 4 and 7 ranks
	@INFERCLUSTER_DCP_MATRIX=1 $(PYTHON) -m pytest tests/python/test_dcp*.py

lint: setup ## clang-format, clang-tidy, the order of the modules
	@tools/setup.sh lint
	@tools/lint.sh

clean: ## remove what was built; .venv stays
	rm -rf build bench/data python/infercluster/_core*.so
