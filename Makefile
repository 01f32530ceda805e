# `make` prints the targets. Every target that needs the environment sets it up first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
EXTRAS := server,worker,postgres,mcp,otel,langchain,openai-agents,dev

LISTEN ?= 127.0.0.1:50051
DATA_DIR ?= .agenttx
PYTEST_WORKERS ?= auto
PYTEST_ARGS ?=
SIMULATION_ARGS ?= --seed 5000 --count 20000
CRASH_ARGS ?=
BENCH_ARGS ?=
BREAKING_AGAINST ?= HEAD
IMAGE ?= agenttx
BASE_IMAGE ?= python:3.11-slim

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run demo test test-fast test-simulation test-mutations test-crash lint lint-style lint-types lint-imports lint-protos lint-generated \
  lint-image format stubs breaking docs bench lock wheel docker image-check clean

help: ## print this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with everything that development needs

$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "make: Python 3.11 or newer is needed, %s is %s: make setup PYTHON=python3.x" % (sys.executable, sys.version.split()[0]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[$(EXTRAS)]'
	@scripts/install_grpcurl.sh $(BIN)/python
	@touch $@

run: $(STAMP) ## serve on LISTEN (127.0.0.1:50051), data in DATA_DIR (.agenttx)
	$(BIN)/agenttx serve --listen $(LISTEN) --data-dir $(DATA_DIR)

demo: $(STAMP) ## run the demonstration: a failure, its root cause, the rollback
	$(BIN)/python examples/demo.py

test: $(STAMP) ## run all tests
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

test-fast: $(STAMP) ## run the tests that are not marked slow
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) --dist loadfile -m 'not slow' $(PYTEST_ARGS)

test-crash: $(STAMP) ## kill servers under load for minutes, then check every promise; CRASH_ARGS=--help
	$(BIN)/python -m tests.crash $(CRASH_ARGS)

test-simulation: $(STAMP) ## play histories of whole clusters: SIMULATION_ARGS='--seed 5000 --count 20000'
	$(BIN)/python -m tests.simulation $(SIMULATION_ARGS)

test-mutations: $(STAMP) ## break the engine in one place after another and show which tests notice
	$(BIN)/python scripts/check_mutations.py

# In parts, so that `make --keep-going lint` reports every finding and not the first tool's only.
lint: lint-style lint-types lint-imports lint-protos lint-generated lint-image ## run all the checks below

lint-style: $(STAMP) ## check code style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

lint-types: $(STAMP) ## check types, strictly
	$(BIN)/mypy

lint-imports: $(STAMP) ## check that the layers import one another as they may
	$(BIN)/lint-imports --no-logo

lint-protos: $(STAMP) ## check the protos' style and formatting
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

lint-generated: $(STAMP) ## check that generated files are what would be generated now
	$(BIN)/python scripts/generate_stubs.py --check
	$(BIN)/python scripts/generate_api_reference.py --check
	$(BIN)/python scripts/generate_configuration_reference.py --check

lint-image: $(STAMP) ## check the Dockerfile
	$(BIN)/hadolint docker/Dockerfile

format: $(STAMP) ## format the code and the protos
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/buf format --write

stubs: $(STAMP) ## regenerate client/agenttx/v1 from protos/
	$(BIN)/python scripts/generate_stubs.py

breaking: $(STAMP) ## compare the protos with those of BREAKING_AGAINST (default HEAD)
	$(BIN)/buf breaking --against '.git#ref=$(BREAKING_AGAINST)'

docs: $(STAMP) ## regenerate the API and configuration references
	$(BIN)/python scripts/generate_api_reference.py
	$(BIN)/python scripts/generate_configuration_reference.py

bench: $(STAMP) ## measure throughput and latency on this machine: BENCH_ARGS=--quick, --render, --help
	$(BIN)/python -m benchmarks.run $(BENCH_ARGS)

lock: $(STAMP) ## renew requirements.lock within the bounds of pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras \
	  --no-header --no-annotate --no-emit-index-url --output-file requirements.lock pyproject.toml

wheel: $(STAMP) ## build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

docker: ## build the server's image, IMAGE from BASE_IMAGE
	docker build --file docker/Dockerfile --build-arg BASE_IMAGE=$(BASE_IMAGE) --tag $(IMAGE) .

image-check: ## build the image and show that it starts, serves and drains; ROOTFS=FILE.tar where no engine runs
	scripts/check_image.sh $(if $(ROOTFS),--rootfs $(ROOTFS))

clean: ## remove what the other targets made, except server data
	rm -rf $(VENV) .venv-stubs build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find client server tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
