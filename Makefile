# make setup | test | demo | bench | pictures | recording | screenshots. Everything is installed into .venv, once. make paddle: Paddle into .venv-paddle. make torch: another torch. make torchft: torchft into .venv-torchft. make scripts: HF Trainer, PEFT, Lightning, datasets and trackers into .venv-scripts.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
NEEDS := import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; name one with: make PYTHON=/path/to/python")

PADDLE := .venv-paddle
TORCH ?= 2.14.1
TORCHFT := .venv-torchft
SCRIPTS := .venv-scripts
DOCS := .venv-docs
DIST := .venv-dist

.PHONY: setup test lint demo docs docs-serve dist bench pictures recording screenshots paddle torch torchft scripts clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" -c '$(NEEDS)'
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@ .venv/.demo

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

# Needs less than the tests: torch, an etcd and scikit-learn.
demo: .venv/.demo
	$(BIN)/python -m elastic.examples.demo

.venv/.demo: pyproject.toml constraints.txt
	@"$(PYTHON)" -c '$(NEEDS)'
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded,examples]'
	touch $@

# Every figure of docs/concepts/benchmarks.md, its table, and the pictures of it: about four hours, on a machine that does nothing else. A figure
# that misses its goal is said, and the rest is measured all the same.
bench: setup scripts torchft
	-$(SCRIPTS)/bin/python -m tests.bench.recovery
	-$(SCRIPTS)/bin/python -m tests.bench.learning
	-$(BIN)/python -m tests.bench.start
	-$(BIN)/python -m tests.bench.scale
	-$(BIN)/python -m tests.bench.idle --library
	-$(BIN)/python -m tests.bench.checkpoint
	$(BIN)/python -m tests.bench.table --write
	$(BIN)/python -m tests.bench.pictures

# docs/pictures, drawn from what docs/bench has.
pictures: setup
	$(BIN)/python -m tests.bench.pictures

# The demo once more in a terminal, and its picture: a minute.
recording: setup
	$(BIN)/python -m tests.bench.recording
	$(BIN)/python -m tests.bench.pictures

# The screenshots of the dashboard in docs, of a real job in Chromium: three minutes.
screenshots: setup
	$(BIN)/python -m tests.bench.screenshots

# The documentation site, in build/site. A stale table, a broken link, and a page that mkdocs.yml lacks fail.
docs: setup $(DOCS)/.installed
	$(BIN)/python -m pytest -q tests/unit/docs/test_pages.py
	$(DOCS)/bin/python -m tests.site.pages
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

docs-serve: docs
	$(DOCS)/bin/python -m http.server --bind 127.0.0.1 --directory build/site 8000

$(DOCS)/.installed: tests/site/requirements.txt
	test -x $(DOCS)/bin/python || "$(PYTHON)" -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/site/requirements.txt
	touch $@

# The sdist and the wheel in dist/: their metadata and contents are checked, and the demo runs from the wheel in an environment of its own.
dist: $(DIST)/.installed
	rm -rf dist $(DIST)/wheel $(DIST)/empty
	$(DIST)/bin/python -m build --outdir dist .
	$(DIST)/bin/twine check --strict dist/*
	$(DIST)/bin/check-wheel-contents --toplevel elastic,launcher dist/*.whl
	$(DIST)/bin/python -m tests.dist.contents dist
	"$(PYTHON)" -m venv $(DIST)/wheel && mkdir $(DIST)/empty
	$(DIST)/wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(echo dist/*.whl)[embedded,examples]"
	cd $(DIST)/empty && ../wheel/bin/python -m elastic.examples.demo && ../wheel/bin/elastic-ctl --version

$(DIST)/.installed: tests/dist/requirements.txt
	test -x $(DIST)/bin/python || "$(PYTHON)" -m venv $(DIST)
	$(DIST)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/dist/requirements.txt
	touch $@

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
	rm -rf build dist .venv $(DOCS) $(DIST) $(PADDLE) $(TORCHFT) $(SCRIPTS) .venv-torch-* .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis
