# `make help` says what there is. Two commands do everything on a fresh machine: `make demo`, `make test`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
STEP := @tests/support/step
# uv takes a tenth of pip's time. It compiles modules only if it is asked, and the first import of
# torch takes a minute else. It does not read pip's configuration: what that says of an index is
# heard where uv found nothing.
INSTALL = $(BIN)/uv pip install -q --compile-bytecode --python $(BIN)/python -c constraints.txt $(1) || \
  $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt $(1)
# What wheels and images have. Not in .venv, where what one edits is what runs.
COMPILED := $(CURDIR)/.cache/compiled
COMPILE := HATCH_BUILD_HOOK_ENABLE_CUSTOM=true

export CLUSTER
# Where the cluster's kubeconfig is; with CLUSTER=current, wherever kubectl looks.
ifneq ($(CLUSTER),current)
export KUBECONFIG := $(CURDIR)/.run/cluster/kubeconfig
endif
export PATH := $(CURDIR)/.venv/bin:$(CURDIR)/.cache/bin:$(PATH)
# Images of Python set it. Each process that a test starts would parse every module, as would each
# worker of pytest every test.
unexport PYTHONDONTWRITEBYTECODE

##@ Getting started
.PHONY: help install serve demo wheel
help: ## Show this text
	@awk 'BEGIN {FS = ":.*##"} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*##/ {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## Make .venv with everything, at the versions of constraints.txt
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt uv
	$(call INSTALL,-e '.[dev]')
	@touch $@

# Installs only what serving needs: the first answer is seconds away.
.venv/.serving: pyproject.toml constraints.txt
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	@test -e $(INSTALLED) || $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[serving]'
	@touch $@

PORT ?= 8080
serve: .venv/.serving ## Serve examples/01-iris on this machine (needs nothing but Python); PORT=8080
	@echo 'batchedapi is in .venv/bin: source .venv/bin/activate puts it on the PATH'
	$(BIN)/batchedapi serve -f examples/01-iris/batchedapi.yaml --port $(PORT) --admin-port $$(($(PORT) + 1))

# pip takes the second where it fits: it is the faster one, and needs gcc here, not there.
wheel: ## The wheels that one installs, in dist: one for all machines, one compiled for those like this
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip wheel -q --disable-pip-version-check --no-deps -w dist .
	$(COMPILE) $(BIN)/pip wheel -q --disable-pip-version-check --no-deps -w dist .

.PHONY: sbom
sbom: ## The Python packages of each image, as CycloneDX, in dist
	$(PYTHON) -m venv .venv/sbom .venv/sbom/serving .venv/sbom/operator
	.venv/sbom/bin/pip install -q --disable-pip-version-check cyclonedx-bom==7.5.0
	mkdir -p dist
	set -e; for part in serving operator; do made=.venv/sbom/$$part; \
	  $$made/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/$$part.txt; \
	  $$made/bin/pip install -q --disable-pip-version-check --no-deps .; \
	  .venv/sbom/bin/cyclonedx-py environment $$made -o dist/batchedapi-$$part.cdx.json; done

# The extra `otel` is 8 MB, so that a manifest can ask for traces; `hf` and `oci` are 20 MB, so that it
# can name a model at any address. Of every platform and Python: an image may have another base.
LOCK = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command 'make requirements' -c constraints.txt
BUILD_NEEDS := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
  print(*p["build-system"]["requires"], *p["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["dependencies"], sep="\n")
.PHONY: requirements
requirements: $(INSTALLED) ## What the images install, at the versions of constraints.txt, with hashes
	$(LOCK) pyproject.toml $(addprefix --extra ,serving otel redis hf oci) -o requirements/serving.txt
	$(LOCK) pyproject.toml --extra operator -o requirements/operator.txt
	$(BIN)/python -c '$(BUILD_NEEDS)' | $(LOCK) - -o requirements/build.txt

demo: $(INSTALLED) ## The whole product on a cluster: install, apply, predict, load, scale up and why
	$(BIN)/python examples/demo.py

##@ Checks
.PHONY: test lint type arch verify unit unit-compiled contract examples operator e2e fmt site site-test
test: ## Every check below, in this order; what e2e needs is built beside them
	@tests/support/beside tests/cluster/prepare $(MAKE) --no-print-directory checks

.PHONY: checks checks-on-cluster
# The two that come first take a core each, for a minute and more.
checks:
	$(STEP) install $(MAKE) --no-print-directory install
	$(STEP) 'type, compile, lint, arch, verify' $(MAKE) --no-print-directory -j 2 -O type compiled lint arch verify
	$(STEP) unit $(MAKE) --no-print-directory unit
	$(STEP) compiled $(MAKE) --no-print-directory unit-compiled
	$(STEP) contract $(MAKE) --no-print-directory contract
	$(STEP) 'site, torch' $(MAKE) --no-print-directory -j 2 -O site-test .venv/.torch
	@tests/support/with-cluster $(MAKE) --no-print-directory checks-on-cluster

# The operator's tests wait more than they compute, those of the examples the other way round.
checks-on-cluster:
	$(STEP) 'examples, operator' $(MAKE) --no-print-directory -j 2 -O examples operator
	$(STEP) e2e $(MAKE) --no-print-directory e2e

fmt: $(INSTALLED) ## Format the code
	$(BIN)/ruff check --fix-only -q . && $(BIN)/ruff format .

lint: $(INSTALLED) ## ruff: every rule but those ignored with a reason
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

type: $(INSTALLED) ## mypy --strict
	$(BIN)/mypy hatch_build.py core serving operator crds docs/site tests/support tests/cluster tests/bench tests/e2e tests/fuzz

arch: $(INSTALLED) ## import-linter: who may know whom
	$(BIN)/lint-imports

generate: $(INSTALLED) ## Write everything generated: CRD, chart, schema, reference, classes
	$(BIN)/python crds/generate_kubernetes.py
	$(BIN)/python crds/generate.py
	$(BIN)/python crds/generate_grpc.py

verify: $(INSTALLED) ## Regenerate and fail on a difference
	$(BIN)/python crds/generate_kubernetes.py --check
	$(BIN)/python crds/generate.py --check
	$(BIN)/python crds/generate_grpc.py --check

# Of a worker that crashed the last lines name the test; one in its place would go on, and fail otherwise.
unit: $(INSTALLED) .cache/bin/kubeconform ## Fast tests, on every core; the pure modules have 100 % branch coverage
	$(BIN)/python -m pytest -n auto --dist worksteal --max-worker-restart 0 tests/unit tests/bench --durations 15 --cov --cov-fail-under=100 --cov-report=term:skip-covered

# The chart's tests render it with helm, which is there before kubeconform, and check it with that.
.cache/bin/kubeconform:
	tests/cluster/tools

.PHONY: compiled
compiled: $(COMPILED)/.made ## What wheels and images have, in .cache/compiled
$(COMPILED)/.made: $(INSTALLED) hatch_build.py $(shell find core serving operator -name '*.py')
	rm -rf $(COMPILED) .cache/wheel
	$(COMPILE) $(BIN)/pip wheel -q --disable-pip-version-check --no-deps -w .cache/wheel .
	$(BIN)/pip install -q --disable-pip-version-check --no-deps --target $(COMPILED) .cache/wheel/*.whl
	@touch $@

# Of packages and files that have compiled modules: all else is the same Python in both.
COMPILED_TESTS := $(addprefix tests/unit/core/,batching service_model) \
  $(addprefix tests/unit/serving/,codecs dispatch laptop/tuning metrics model tracing web) \
  $(addprefix tests/unit/serving/test_,path_of_a_request.py promises_batching.py queue_messages.py shared_queue.py web_process.py)

unit-compiled: $(COMPILED)/.made ## The tests of compiled modules, as wheels and images have them
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -n auto --dist worksteal $(COMPILED_TESTS)

# Three at once on two cores: half of the time nothing is computed, but waited for.
contract: $(COMPILED)/.made ## The serving half, compiled: real processes and sockets
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not alone" tests/contract/serving tests/contract/test_bench_programs.py --durations 15
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest -m alone tests/contract/serving

# Torch is large: only the examples that need it wait for it. The project itself is not installed
# again, as other tests may run meanwhile.
.venv/.torch: $(INSTALLED)
	$(BIN)/python -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	  wanted = sum((extras[one] for one in ("torch", "torch-examples", "huggingface", "keras", "loadtest")), []); \
	  print(*(name for name in wanted if not name.startswith("batchedapi[")), sep="\n")' >$@.txt
	$(call INSTALL,-r $@.txt)
	@touch $@

examples: .venv/.torch $(COMPILED)/.made ## The examples with a real model, trained and served; installs torch
	PYTHONPATH=$(COMPILED) $(BIN)/python -m pytest tests/contract/examples

# Each of the three has a namespace and an operator of its own. In the order of the files: those with
# few tests would come last otherwise, and they are the long ones.
operator: $(INSTALLED) ## The chart, and the operator's half on a real kube-apiserver
	tests/support/with-cluster $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder \
	  --durations 15 tests/unit/charts/test_schemas.py tests/contract/operator

e2e: $(INSTALLED) ## The whole on a real cluster with real pods
	tests/support/with-cluster $(BIN)/python -m pytest -s --durations 15 tests/cluster tests/e2e

site: $(INSTALLED) ## The documentation as a site, in .run/site; a link that leads nowhere fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -f docs/site/mkdocs.yml

site-test: site ## The site and its links, its versions, and each page in a real Chromium
	$(BIN)/python -m pytest tests/contract/test_site.py

##@ Cluster
.PHONY: cluster-up cluster-down images
cluster-up: ## Start a cluster (CLUSTER=kind | local | current)
	tests/cluster/up

cluster-down: ## Stop it, and everything it started
	tests/cluster/down

images: ## Build both images and load them into the cluster
	tests/cluster/images

.PHONY: picture
picture: $(INSTALLED) ## The README's picture of the page, as it is now
	PICTURE=1 $(BIN)/python -m pytest tests/contract/serving/test_page.py -k readme

##@ Measuring
.PHONY: bench bench-peers fuzz laws
bench: bench-peers $(COMPILED)/.made ## Interleaved ratios against mosec, LitServe and BentoML; wants a quiet machine
	PYTHONPATH=$(COMPILED) $(BIN)/python tests/bench/run_all.py

# BentoML in an environment of its own: it pins other versions of OpenTelemetry than constraints.txt.
bench-peers: $(INSTALLED)
	$(call INSTALL,-e '.[bench]')
	@test -x .venv/bentoml/bin/pip || $(PYTHON) -m venv .venv/bentoml
	.venv/bentoml/bin/pip install -q --disable-pip-version-check -e '.[serving,bench-bentoml]'

laws: $(INSTALLED) ## The long laws with ten times the examples of `make unit`, and others each time
	THOROUGH=10 $(BIN)/python -m pytest -n auto $(shell grep -rl '^from thorough' tests/unit tests/contract)

fuzz: $(INSTALLED) ## A million inputs for the decoders, guided by coverage
	$(call INSTALL,-e '.[fuzz]')
	$(BIN)/python tests/fuzz/decoders.py --runs 1000000

.PHONY: clean
clean: ## Remove what was made here, but for .cache, which holds the built Kubernetes
	rm -rf .venv dist build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache \
	  .import_linter_cache
