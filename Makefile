# make install   .venv with livingkv, its dependencies and the development tools; quick when nothing has changed
# make demo      install, fetch the default model, read examples/ and answer from it in a second process
# make test      install, fetch the default model, run all tests (those for a GPU where there is one)
# make check     ruff, formatting, types, fast tests
# make fast      the fast tests: no network, no real model
# make model     fetch the default model
# make browser   a Chromium for the tests of the web page, where this is root on Debian and none is there; without one they
#                are skipped. LIVINGKV_CHROMIUM names another.
# make screenshots  the pictures of the web page in docs/screenshots, made anew
# make bench     every figure of speed beside its baselines, in one run: experiments/033_bench, docs/BENCH.md. BENCH holds its
#                options: make bench BENCH="--quick", BENCH="--device cuda", BENCH="--only probe,growth"
# make clean     remove .venv and everything made here; the model cache (~/.cache/livingkv) stays
#
# Variables:
#   PYTHON=python3.12         the Python to make .venv with (3.11 or newer)
#   TORCH=torch==2.13.0       which torch to install. One that .venv has already is left alone.
#   TORCH_INDEX=URL           a package index for torch alone. On PyPI, torch for Linux is a CUDA build of gigabytes;
#                             without an NVIDIA GPU, where the network allows it, take
#                             TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   PIP_ARGS="..."            more arguments for every pip install, such as --index-url
#   SYSTEM_SITE=1             .venv sees the packages of PYTHON, such as a torch that is there

.PHONY: install demo test check lint types fast model browser screenshots bench clean

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RIGHT_PYTHON := import sys; raise SystemExit(sys.version_info < (3, 11))
CANDIDATES := python3 python3.13 python3.12 python3.11
PYTHON ?= $(shell for p in $(CANDIDATES); do $$p -c '$(RIGHT_PYTHON)' >/dev/null 2>&1 && echo $$p && break; done)
GPU := $(shell nvidia-smi -L 2>/dev/null | head -n 1)
TORCH ?= $(if $(GPU),torch>=2.10,torch==2.13.0)
COMMA := ,
EXTRAS := $(if $(GPU),dev$(COMMA)gpu,dev)
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(PIP_ARGS)
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q  # without compiled files, half of a short run is compiling
SIDE_BY_SIDE := -n auto --dist loadfile  # a file's tests share what they set up

install: $(STAMP)

$(STAMP): pyproject.toml
	@"$(PYTHON)" -c '$(RIGHT_PYTHON)' 2>/dev/null || { \
		echo "livingkv needs Python 3.11 or newer. Found: $$("$(or $(PYTHON),python3)" --version 2>&1 | head -n 1)." \
			"Name one with: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(if $(SYSTEM_SITE),--system-site-packages) $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || \
		$(PIP) $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") "$(TORCH)"
	@$(PIP) -e ".[$(EXTRAS)]"
	@touch $@

model: install
	@echo "== The default model: fetched and converted the first time, which takes minutes"
	@$(BIN)/livingkv model fetch

demo: model
	@sh examples/demo.sh

test: model
	$(PYTEST) $(SIDE_BY_SIDE) -m "not model and not gpu and not slow"
	$(PYTEST) $(SIDE_BY_SIDE) -m "(model or slow) and not gpu"
	$(if $(GPU),$(PYTEST) -m gpu)

check: lint types fast

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check

# Every experiment is a script of its own, so it is typed on its own.
types: install
	$(BIN)/mypy
	@for folder in experiments/[0-9]*/; do echo "mypy $$folder" && $(BIN)/mypy $$folder*.py || exit 1; done

fast: install
	$(PYTEST) $(SIDE_BY_SIDE) -m "not model and not gpu and not slow"

browser:
	@sh -c 'for name in "$$LIVINGKV_CHROMIUM" chromium chromium-browser google-chrome; do \
		test -n "$$name" && command -v "$$name" >/dev/null && exit 0; done; \
		if test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=20 update >/dev/null 2>&1 && \
		apt-get install -y -q chromium >/dev/null 2>&1; then exit 0; fi; \
		echo "No Chromium here: the tests of the web page in a browser are skipped. Debian: apt-get install chromium" >&2'

screenshots: install
	$(BIN)/python -m tests.server.screenshots

# The default model's GGUF is what llama.cpp runs; where it was fetched from it lies in the cache.
bench: model
	$(PIP) -e ".[bench]"
	$(BIN)/python experiments/033_bench/run.py $(BENCH)

clean:
	rm -rf $(VENV) build dist demo-store *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
