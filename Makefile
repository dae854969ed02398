# Every target sets up .venv by itself but `make gpu`, which installs nothing; `make` alone lists the targets.
# PYTHON=...       the interpreter to create .venv with (3.11 or newer)
# ARGS=...         of make public and make gpu, e.g. ARGS="--source CUB"
# MINUTES=...      of make gpu
# PYTEST_ARGS=...  more arguments for pytest, e.g. PYTEST_ARGS="-k cache -x"

PYTHON ?= python3
PYTEST_ARGS ?=
ARGS ?=
MINUTES ?= 9

VENV := .venv
PY := $(VENV)/bin/python
READY := $(VENV)/.installed
FRAMEWORKS := $(VENV)/.frameworks
FRONTENDS := $(VENV)/.frontends
EARLY := $(VENV)/early
BROWSER := $(VENV)/.browser
NOTEBOOK := $(VENV)/.notebook
PYTHONS := $(VENV)/pythons
PYODIDES := 3.12=0.27.7 3.13=0.29.5 3.14=314.0.7  # CPython in WebAssembly, from npm
HOSTS := $(VENV)/.hosts
PUBLIC := $(VENV)/.public
TYPES := $(VENV)/.types
PYTEST := $(PY) -m pytest -n auto --dist worksteal
JUDGED = $$(grep -rlw judged tests --include='test_*.py')  # to collect all files takes longer
# Of make nightly.
SHARES := kernels attention toolkit
NIGHTLY_kernels := tests/flash/kernels
NIGHTLY_attention := tests/flash --ignore=tests/flash/kernels
NIGHTLY_toolkit := --ignore=tests/flash
COVERAGE := --cov=ptxgen --cov=flash --cov-branch --cov-fail-under=95

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow blas frameworks frontends browser notebook hosts public pythons lint types layers docs-check \
  early mutants analyses coverage nightly release bench gpu clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## generate, check, assemble and run two attention kernels
	$(PY) tools/demo.py

test: $(READY) ## the quick tests; those that need a GPU skip themselves where there is none
	$(PYTEST) -m "not slow and not nightly" $(PYTEST_ARGS)

slow: $(READY) ## every third of the slower tests, which .ci/run has besides those of make test
	$(PYTEST) --share 1/3 -m "slow and not nightly" $(PYTEST_ARGS)

blas: $(READY) ## tests that judge sums of floats, a part with each other BLAS kernel of this CPU; SHARE=1: all
	@set -e; kernels=$$($(PY) tools/blas_kernels.py); part=0; \
	for kernel in $$kernels; do \
	  part=$$((part + 1)); share=$$part/$(or $(SHARE),$$(set -- $$kernels; echo $$(($$# + 1)))); \
	  echo "OPENBLAS_CORETYPE=$$kernel --share $$share"; \
	  OPENBLAS_CORETYPE=$$kernel $(PYTEST) --share $$share -m "judged and not slow and not nightly" $(PYTEST_ARGS) $(if $(findstring tests/,$(PYTEST_ARGS)),,$(JUDGED)); \
	done

frameworks: $(FRAMEWORKS) ## PyTorch, JAX, transformers and Numba, whose tests skip themselves without them

frontends: $(FRONTENDS) ## NVRTC, Triton, Numba and CuTe DSL (2 GB), whose tests skip themselves, too

early: $(EARLY) ## f32 for GPUs before Turing, assembled by ptxas of CUDA 12, which it installs
	PTXGEN_PTXAS=$(abspath $(EARLY))/nvidia/cuda_nvcc/bin/ptxas PTXGEN_REQUIRE=early_assembler \
	  $(PY) -m pytest tests/flash/kernels/test_early_targets.py tests/test_target.py -k early -m "" $(PYTEST_ARGS)

browser: $(BROWSER) ## Selenium, Pillow, fontTools, and where apt-get may Chromium, for tests of report pages

notebook: $(NOTEBOOK) ## a kernel of Jupyter and nbclient, for the test of the tutorial

pythons: $(READY) ## the code under Python 3.12 to 3.14: types, and what runs without numpy (node, npm)
	@set -e; for pair in $(PYODIDES); do \
	  folder=$(PYTHONS)/$${pair%=*}; \
	  [ -d $$folder/node_modules ] || npm install --silent --prefix $$folder pyodide@$${pair#*=} >/dev/null; \
	  $(PY) -m mypy --python-version $${pair%=*}; \
	done
	$(PY) -m pytest -m nightly tests/test_pythons.py $(PYTEST_ARGS)

hosts: $(HOSTS) ## where apt-get may install it a Rust compiler, for the tests of hosts in other languages

public: $(PUBLIC) ## kernels of Liger, FlagGems, CUB, llama.cpp and others: verdicts, counted; ARGS="--json"
	$(PY) tools/public_kernels.py $(ARGS)

mutants: $(READY) ## break the kernels in a sample of ways; something must notice each
	$(PY) tools/mutate.py --short

analyses: $(READY) ## break the analysers in a sample of ways; a test must notice each
	$(PY) tools/mutate_analyses.py

coverage: $(READY) ## the tests, and which lines they reach; three times as long
	$(PYTEST) -m "not nightly" $(COVERAGE) $(PYTEST_ARGS)

nightly: $(READY) ## all tests, also those that take minutes; SHARE=kernels, attention or toolkit: a share of them
	$(if $(and $(SHARE),$(filter-out $(SHARES),$(SHARE))),$(error SHARE must be one of: $(SHARES)))
	$(PYTEST) -o faulthandler_timeout=0 $(NIGHTLY_$(SHARE)) $(PYTEST_ARGS)

lint: $(READY) ## style and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(TYPES) ## static types, and programs of users that they accept and refuse
	$(PY) -m mypy
	$(PY) tests/typing/check.py

layers: $(READY) ## the direction of imports
	$(VENV)/bin/lint-imports

docs-check: $(READY) ## generated stubs, pages and pictures are up to date
	$(PY) tools/gen_ops_stub.py --check
	$(PY) tools/gen_isa_docs.py --check
	$(PY) tools/gen_api_docs.py --check
	$(PY) tools/gen_roles_picture.py --check
	$(PY) tools/gen_pipeline_picture.py --check
	$(PY) tools/gen_barrier_picture.py --check
	$(PY) tools/gen_public_kernels.py --check
	$(PY) tools/gen_ledger.py --check
	$(PY) tools/gen_gpu_page.py --check
	$(PY) tools/gen_rooms.py --check

release: $(READY) ## build wheel and sdist into dist, and try both with each supported Python that is here
	$(PY) tools/release.py --output dist

bench: $(READY) ## measure, print a table, write JSON to benchmarks/results/
	$(PY) tools/bench.py --output benchmarks/results

gpu: ## what a GPU says in MINUTES=9: tests, timing, counters; ARGS="--output DIR --wheels DIR"
	$(if $(wildcard $(PY)),$(PY),$(PYTHON)) tools/gpu_session.py --minutes $(MINUTES) $(ARGS)

clean: ## remove what building and testing left behind
	rm -rf build dist *.egg-info .coverage .coverage.* .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## the same, and .venv
	rm -rf $(VENV)

# Installed again only when pyproject.toml changes: everything else is found in place.
$(READY): pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[dev,bench]'
	@touch $@

$(FRAMEWORKS): pyproject.toml | $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[frameworks,compiled]'
	@touch $@

$(TYPES): pyproject.toml | $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[types]'
	@touch $@

$(EARLY): | $(READY)
	$(PY) -m pip install --quiet --target $@ nvidia-cuda-nvcc-cu12==12.9.86

$(FRONTENDS): pyproject.toml | $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[frontends]'
	@touch $@

$(NOTEBOOK): pyproject.toml | $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[notebook]'
	@touch $@

# Without their dependencies, among which are other versions of what is installed.
$(PUBLIC): pyproject.toml tools/public/*.py | $(FRONTENDS) $(FRAMEWORKS)
	$(PY) tools/public_kernels.py --packages | \
	  xargs $(PY) -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/public
	@touch $@

# Without a browser its tests skip themselves.
$(BROWSER): pyproject.toml | $(READY)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@if ! command -v chromedriver >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  { apt-get -qq update && apt-get -qq install -y chromium chromium-driver; } >/dev/null 2>&1 || \
	    echo "apt-get has no Chromium here; the tests of report pages in a browser are skipped"; \
	fi
	@touch $@

# Without compilers their tests skip themselves.
$(HOSTS): pyproject.toml | $(READY)
	@for need in cc:gcc rustc:rustc; do \
	  if ! command -v $${need%:*} >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    { apt-get -qq update && apt-get -qq install -y $${need#*:}; } >/dev/null 2>&1 || \
	      echo "apt-get has no $${need#*:} here; the tests of hosts that need it are skipped"; \
	  fi; \
	done
	@touch $@

# The first interpreter that is new enough makes .venv.
$(PY):
	@set -e; found=; \
	for python in $(PYTHON) python3.14 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$python; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "Python 3.11 or newer is needed; '$(PYTHON) --version' says:" \
	    "$$($(PYTHON) --version 2>&1 || true)." \
	    "Install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$found cannot create virtual environments: on Debian and Ubuntu," \
	    "apt install python3-venv" >&2; \
	  exit 1; \
	fi; \
	"$$found" -m venv $(VENV)
