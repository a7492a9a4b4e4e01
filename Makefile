# SemBlend's targets. `make demo` and `make test` make what they need.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# One thread a worker: two workers on two cores, and results that do not depend on the machine.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1

.PHONY: install demo test lint types unit soak soak-short reliability sbom fuzz attack audit test-fleet test-vllm test-sglang clean

install: $(VENV)/.dev

# What the engine, the server and the demo need. torch first and pinned: asked for by
# another package, pip would take the newest build.
$(VENV)/.engine: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the engine (a minute or two)"
	@$(PIP) torch
	@$(PIP) -e '.[serve]'
	@touch $@

$(VENV)/.dev: $(VENV)/.engine
	@echo "installing what tests and benchmarks need"
	@$(PIP) -e '.[serve,embedder,gpu,benchmarks,fleet,dev]'
	@touch $@

demo: $(VENV)/.engine
	@$(BIN)/semblend demo

# Everything, each engine for real on the CPU: about half an hour on two cores when new.
test: lint types unit soak-short test-vllm test-sglang test-fleet

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist loadfile --ignore tests/fleet

# A real nats-server, real engines (vLLM and SGLang where their environments are), Dynamo and
# Mooncake. Dynamo brings pytest plugins that ignore every file with an engine in its name.
test-fleet: $(VENV)/.dev
	@bash scripts/fleet_env.sh
	$(TEST_ENV) FLEET_TESTS=required .venv-fleet/bin/python -m pytest \
	    -p no:vllm_tests -p no:sglang_tests -p no:trtllm_tests -p no:triton_tests tests/fleet

# Real engines on the CPU, each in an environment of its own.
test-vllm:
	@echo "the vLLM environment (a few minutes when new)"
	@bash scripts/vllm_env.sh $(PYTHON)
	.venv-vllm/bin/python -m pytest tests/integration/vllm
	TEST_VLLM_RUNNER=v2 TEST_VLLM_SCHEDULING=async .venv-vllm/bin/python -m pytest $(VLLM_STEPS)
	TEST_VLLM_RUNNER=v1 TEST_VLLM_SCHEDULING=async .venv-vllm/bin/python -m pytest $(VLLM_STEPS)
	TEST_VLLM_RUNNER=v2 TEST_VLLM_SCHEDULING=sync .venv-vllm/bin/python -m pytest $(VLLM_FAILING)

# The V2 runner and asynchronous scheduling are vLLM's defaults on GPUs. What steps do with loads
# is tried under all four combinations, on a CPU: V2's kernels run in Triton's interpreter.
VLLM_FAILING := $(addprefix tests/integration/vllm/,test_failures.py test_fault_points.py)
VLLM_STEPS := $(VLLM_FAILING) $(addprefix tests/integration/vllm/,\
    test_scheduling.py test_segmented.py test_prefix_cache.py)

test-sglang:
	@echo "the SGLang environment (a few minutes when new)"
	@bash scripts/sglang_env.sh $(PYTHON)
	.venv-sglang/bin/python -m pytest tests/integration/sglang

# The real server under mixed tenants, hang-ups and faults, its answers held to cold.
MINUTES ?= 20
soak: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --minutes $(MINUTES)

soak-short: $(VENV)/.dev
	$(BIN)/python -m benchmarks.soak --minutes 2

reliability: $(VENV)/.dev
	$(BIN)/python -m benchmarks.corruption
	$(BIN)/python -m benchmarks.crash_recovery
	$(BIN)/python -m benchmarks.fault_cost

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
