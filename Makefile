# Two commands do everything: `make demo` and `make test`. Each makes or reuses .venv and installs what is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test docs docs-look test-cluster smoke release-check reproduce-smoke results-page browser lint format bench clean

demo: $(VENV)/.installed
	$(BIN)/isomargin demo --report

test: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n $(WORKERS) --dist loadgroup

# Several nodes on this machine, some of which fail: a few minutes. Prints what was measured.
test-cluster: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m cluster -rP tests

# The documentation site, with the examples of its pages run: docs/_build/html/index.html opens from the disk.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -b html -j $(WORKERS) -q -W --keep-going docs docs/_build/html
	$(BIN)/python docs/site/check_links.py docs/_build/html

# Pictures of the site's main pages, and its search, in a browser without a network.
docs-look: $(VENV)/.installed-docs
	$(BIN)/python docs/site/look.py

# The wheel is built, checked and installed without any extra: the core's commands work, and a user's program type-checks.
smoke: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python release/smoke.py

# Before a release: the core's tests with its oldest and newest dependencies, and every extra. Downloads a few gigabytes.
release-check: $(VENV)/.installed-dev
	$(BIN)/python release/check.py

# Every experiment of lab/, end to end, on data small enough for a minute: shows that each one runs, not what it finds.
reproduce-smoke: $(VENV)/.installed
	rm -rf runs/smoke
	$(BIN)/python -m lab all --scale toy --output runs/smoke --results runs/smoke/results

# Fills the tables of docs/results*.md and README.md, and draws their overview, from results/.
results-page: $(VENV)/.installed
	$(BIN)/python docs/fill_results.py
	$(BIN)/python docs/fill_remarks.py
	$(BIN)/python docs/fill_intents.py
	$(BIN)/python docs/overview_picture.py

# The report is tested in a browser; without one those tests are skipped and say so.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || (apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null) || \
	  echo "no browser could be installed: the report's tests in a browser will be skipped"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench_evaluate.py
	$(BIN)/python benchmarks/bench_gallery.py
	$(BIN)/python benchmarks/bench_ray.py
	$(BIN)/python benchmarks/bench_losses.py
	$(BIN)/python benchmarks/bench_training.py
	$(BIN)/python benchmarks/bench_report.py

clean:
	rm -rf $(VENV) runs docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp for each set of dependencies, so that they are installed again only when they have changed.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev,docs]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-dev

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev,bench]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-dev
