# Commands for users: `make demo`, `make page` and `make test`. Each sets up .venv by itself.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: setup demo page test lint types slow gpu docs reliability weights release-check clean

setup: $(READY)

# Torch first and by itself, then everything else with that version held: a plain resolve may swap it for another build.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "lightfast needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	echo "$(TORCH)" > $(VENV)/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c $(VENV)/constraints.txt -e ".[dev]"
	touch $(READY)

demo: $(READY)
	$(BIN)/lightfast reproduce recognition --out demo
	@echo "What this was, and what came out of it, for readers who have read nothing else: open demo/report.html"

page: $(READY)
	$(BIN)/lightfast page

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright

test: lint types
	$(BIN)/python -m pytest

slow: $(READY)
	$(BIN)/python -m pytest -m slow

# On a machine with a GPU, by a Python that has its own torch and Triton: nothing is set up, and one process runs all.
gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -p no:benchmark -o addopts="--import-mode=importlib --strict-markers -q -ra" -m gpu tests

# All attempts of the fuzz suite, which takes an hour; the counts go to results/reliability.
reliability: $(READY)
	$(BIN)/python tests/fuzz/campaign.py all --out results/reliability

# Packaged models in as few bits as their answers allow; DATA=folder of CIFAR-10 measures classifiers on it.
weights: $(READY)
	$(BIN)/python benchmarks/pack_weights.py --out results/weights $(if $(DATA),--data $(DATA))

release-check: $(READY)
	$(BIN)/python tests/release_check.py --torch "$(TORCH)"

# The site, into build/site: tables from results/, tutorials executed, and an end at the first thing that is wrong.
docs: $(READY)
	$(BIN)/python docs/render.py
	$(BIN)/python -m sphinx --builder html --fresh-env --fail-on-warning --quiet \
		--doctree-dir build/doctrees docs build/site
	@echo "Open build/site/index.html"

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache
