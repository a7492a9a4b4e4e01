# SemBlend's targets. `make demo` and `make test` make what they need.
# Uses the first Python from 3.11 to 3.13 that runs here; `make PYTHON=/path/to/python` picks another.
ifndef PYTHON
PYTHON := $(shell bash scripts/find_python.sh)
endif
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One thread per worker: two workers on two cores, and results that do not depend on the machine.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

# Real engines, servers and threads share two cores. A test that missed a deadline runs once more;
# the summary lists it as a rerun, and it wants mending all the same.
TWICE := --reruns 1 -raR
# A file's tests share an engine, so a file stays in one process. tests/conftest.py says which start first.
TWO := -n 2 --dist loadfile --no-loadscope-reorder --durations 15 $(TWICE)
# A test may wait for several engines to start, and a busy machine is no hanging test.
PATIENT := $(TWO) --timeout 600

.PHONY: install wheel demo test check lint types unit test-pythons soak soak-short reliability sbom fuzz attack audit docs reference test-fleet test-vllm test-sglang env-fleet env-vllm env-sglang clean

install: $(VENV)/.dev

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python to make $(VENV) with" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# dist/semblend-VERSION-py3-none-any.whl: all that a machine without this clone needs. Also builds
# semblend_vllm_connector-VERSION-py3-none-any.whl, the connector's second name.
wheel: $(BIN)/python
	@rm -f dist/semblend-*.whl dist/semblend_vllm_connector-*.whl
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist \
	    . ./packaging/semblend-vllm-connector
	@ls dist/semblend-*.whl dist/semblend_vllm_connector-*.whl

# What the engine, the server and the demo need. torch first and pinned: as a dependency of
# another package, pip would take the newest build.
$(VENV)/.engine: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the engine (a minute or two)"
	@$(PIP) torch
	@$(PIP) -e '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.engine
	@echo "installing what tests and benchmarks need"
	@$(PIP) -e '.[serve,embedder,gpu,benchmarks,fleet,signing,dev]'
	@touch $@

demo: $(VENV)/.engine
	@$(BIN)/semblend demo

# Everything, with real engines on the CPU: about three quarters of an hour on two cores the first
# time. What keeps one core busy (installing, types) goes side by side, and first.
test:
	@$(MAKE) --no-print-directory --jobs 3 --output-sync=target lint env-vllm env-sglang types env-fleet
	@$(MAKE) --no-print-directory unit test-pythons soak-short test-vllm test-sglang test-fleet

# What needs no other engine; run it before you send a change.
check: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(TEST_ENV) $(BIN)/python -m pytest $(TWO) --ignore tests/fleet

# The light tests on the oldest and the newest Python found.
test-pythons: $(VENV)/.dev
	$(TEST_ENV) bash scripts/test_pythons.sh

# A real nats-server, real engines (vLLM and SGLang if their environments exist), Dynamo and
# Mooncake. Dynamo brings pytest plugins that ignore every file with an engine in its name.
test-fleet: env-fleet
	$(TEST_ENV) FLEET_TESTS=required .venv-fleet/bin/python -m pytest $(PATIENT) \
	    -p no:vllm_tests -p no:sglang_tests -p no:trtllm_tests -p no:triton_tests tests/fleet

# Nothing is done where an environment is as it should be.
env-fleet: $(VENV)/.dev
	@bash scripts/fleet_env.sh

env-vllm:
	@echo "the vLLM environment (a few minutes when new)"
	@bash scripts/vllm_env.sh $(PYTHON)

env-sglang:
	@echo "the SGLang environment (a few minutes when new)"
	@bash scripts/sglang_env.sh $(PYTHON)

# Real engines on the CPU, each in its own environment.
test-vllm: env-vllm
	$(VLLM_TEST) tests/integration/vllm tests/planning/test_signatures.py
	TEST_VLLM_RUNNER=v2 TEST_VLLM_SCHEDULING=async $(VLLM_TEST) $(VLLM_STEPS)
	TEST_VLLM_RUNNER=v1 TEST_VLLM_SCHEDULING=async $(VLLM_TEST) $(VLLM_STEPS)
	TEST_VLLM_RUNNER=v2 TEST_VLLM_SCHEDULING=sync $(VLLM_TEST) $(VLLM_FAILING)

# An engine a process, a thread an engine: twice as fast as one engine with two threads.
VLLM_TEST := OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest $(PATIENT)

# The V2 runner and asynchronous scheduling are vLLM's defaults on GPUs. Loads in steps
# are tested under all four combinations, on a CPU: V2's kernels run in Triton's interpreter.
VLLM_FAILING := $(addprefix tests/integration/vllm/,test_failures.py test_fault_points.py)
VLLM_STEPS := $(VLLM_FAILING) $(addprefix tests/integration/vllm/,\
    test_scheduling.py test_segmented.py test_prefix_cache.py test_chains.py)

test-sglang: env-sglang
	OMP_NUM_THREADS=1 .venv-sglang/bin/python -m pytest $(PATIENT) tests/integration/sglang

# The real server under mixed tenants, hang-ups and faults; answers must match cold.
MINUTES ?= 20
soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

soak-short: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --minutes 2

reliability: $(VENV)/.dev
	$(BIN)/python -m benchmarks.corruption
	$(BIN)/python -m benchmarks.crash_recovery
	$(BIN)/python -m benchmarks.fault_cost

# The documentation's site, in build/site; a broken link or a page outside the navigation fails.
docs: .venv-docs/.docs
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet
	@echo "build/site/index.html"

.venv-docs/.docs: constraints-docs.txt
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-docs.txt mkdocs-material
	@touch $@

# Pages and pictures generated from code: docs/cli.md, docs/api.md, docs/images.
reference: $(VENV)/.engine
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/diagrams.py

# What is in an installation, as CycloneDX.
sbom: $(VENV)/.dev
	$(BIN)/python scripts/sbom.py --output sbom.json

fuzz: $(VENV)/.dev
	@$(PIP) -e '.[fuzz]'
	$(BIN)/python -m benchmarks.fuzz --json

attack: $(VENV)/.dev
	$(BIN)/python -m benchmarks.timing_attack --json

audit: $(VENV)/.dev
	@$(PIP) pip-audit
	$(BIN)/python scripts/audit_dependencies.py

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .mypy_cache .ruff_cache .hypothesis
