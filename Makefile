# make demo   set everything up and analyze a real training step
# make test   set everything up and run the tests
#
# PYTHON chooses the interpreter (default: the newest that works), VENV the environment's folder.

PYTHON ?= $(shell sh tools/newest-python)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test test-compile lint format protos rule-docs docs wheel clean

demo: $(VENV)/.installed-tpu
	$(BIN)/hloscope analyze examples/moe_train_step.py

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# Only what runs the TPU compiler: the part that differs between versions of jax and libtpu.
test-compile: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m tpu_compile

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The descriptor that hloscope reads HLO with, and its types, from hlo.proto.
protos: $(VENV)/.installed-dev
	cd hloscope/hlo && $(abspath $(BIN))/python -m grpc_tools.protoc -I. \
		--descriptor_set_out=hlo.binpb --pyi_out=. hlo.proto && mv hlo_pb2.pyi protos.pyi

# The pages of docs/rules, from the rules' docstrings.
rule-docs: $(VENV)/.installed-dev
	UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/docs/test_rule_pages.py

# The site in build/site; a warning is an error.
docs: $(VENV)/.installed-dev
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

wheel: $(VENV)/.installed-dev
	$(BIN)/python -m build --wheel

$(VENV)/.python:
	@test -n "$(PYTHON)" || { echo "hloscope needs Python 3.11 or newer, with its venv module" >&2; exit 1; }
	@echo "creating $(VENV) with $$($(PYTHON) --version)"
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed-tpu: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[tpu]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-tpu
	$(PIP) install --quiet --constraint constraints.txt --editable '.[tpu,dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache dist build
