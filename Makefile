# make setup | test | demo | bench. Everything is installed into .venv, once. make paddle: Paddle into .venv-paddle. make torch: another torch. make torchft: torchft into .venv-torchft. make scripts: HF Trainer, PEFT, Lightning, datasets and trackers into .venv-scripts.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed

PADDLE := .venv-paddle
TORCH ?= 2.14.1
TORCHFT := .venv-torchft
SCRIPTS := .venv-scripts

.PHONY: setup test lint demo bench paddle torch torchft scripts clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python")'
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.lint.glossary

# A story of real processes waits now and then, so more run at once than there are cores; the simulation takes every core.
test: lint
	$(BIN)/python -m pytest tests/sim
	$(BIN)/python -m pytest tests/unit tests/store tests/process -m "not hosts" -n 4 --dist loadscope

demo: setup
	$(BIN)/python -m elastic.examples.demo

# Every figure of docs/measured.md, its table, the charts in docs/ and the picture in README.md: about four hours, on a machine that does nothing else. A figure
# that misses its goal is said, and the rest is measured all the same.
bench: setup scripts torchft
	-$(SCRIPTS)/bin/python -m tests.bench.recovery
	-$(SCRIPTS)/bin/python -m tests.bench.learning
	-$(BIN)/python -m tests.bench.start
	-$(BIN)/python -m tests.bench.scale --chart docs/scale.png
	-$(BIN)/python -m tests.bench.idle --library
	-$(BIN)/python -m tests.bench.checkpoint
	-$(BIN)/python -m tests.bench.recorded
	$(BIN)/python -m tests.bench.table --write
	$(BIN)/python -m tests.bench.charts
	$(BIN)/python -m tests.bench.picture

# Paddle and torch do not share a process, so neither do they share an environment. Tests marked paddle use it.
paddle: $(PADDLE)/.installed

$(PADDLE)/.installed: constraints.txt
	test -x $(PADDLE)/bin/python || "$(PYTHON)" -m venv $(PADDLE)
	$(PADDLE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt paddlepaddle
	touch $@

# Another torch in an environment of its own, several GB large, for tests/process/train/test_torch_versions.py: make torch TORCH=2.14.1
torch: .venv-torch-$(TORCH)/.installed

.venv-torch-%/.installed: constraints.txt pyproject.toml
	test -x $(@D)/bin/python || "$(PYTHON)" -m venv $(@D)
	grep -v '^torch==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt torch==$* -e '.[test]'
	touch $@

# torchft in an environment of its own, for `tests.bench.recovery --kinds node,silent`.
torchft: $(TORCHFT)/.installed

$(TORCHFT)/.installed: constraints.txt
	test -x $(TORCHFT)/bin/python || "$(PYTHON)" -m venv $(TORCHFT)
	$(TORCHFT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torchft==0.2.0
	touch $@

# HF Trainer and Lightning in an environment of their own, for `tests.bench.recovery --kinds scripts` and `tests.bench.learning`.
scripts: $(SCRIPTS)/.installed

$(SCRIPTS)/.installed: constraints.txt pyproject.toml
	test -x $(SCRIPTS)/bin/python || "$(PYTHON)" -m venv $(SCRIPTS)
	$(SCRIPTS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt transformers accelerate peft lightning "jsonargparse[signatures]>=4.39" datasets -e '.[test,trackers]'
	touch $@

clean:
	rm -rf .venv $(PADDLE) $(TORCHFT) $(SCRIPTS) .venv-torch-* .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
