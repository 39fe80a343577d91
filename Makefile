# Every target sets up what it needs: a virtual environment in .venv (VENV=... for another one, which may have its own
# torch already), with the versions of constraints.txt (CONSTRAINTS=constraints-oldest.txt for the oldest transformers).
# What is installed is compiled when it is first imported, not before, so that an installation takes less time.
PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
TESTS ?= tests
# Tests of what depends on transformers; those of torch alone are left out.
DEPENDENT := $(filter-out %/test_linear_attention.py,$(wildcard tests/invariants/*.py)) tests/reference/test_whole_model.py \
	tests/hosts tests/modeling tests/lab/training tests/convert/test_marian.py tests/convert/test_transformers.py \
	tests/convert/test_folders.py tests/lab/data/test_tags.py tests/lab/data/test_slow_tokenizers.py \
	$(addprefix tests/translator/test_,causal_translator.py languages.py old_pipeline.py repair.py translator.py)
RUN := $(VENV)/bin/python
WORKERS := auto
PYTEST = $(RUN) -m pytest -q -n $(WORKERS) --dist worksteal
READY := $(VENV)/.hf-posenc-installed

# Compiled modules are kept, even where the environment says otherwise: without them every process compiles torch and
# transformers anew, which is most of a short test's time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install quickstart checkpoints dist test test-all test-slow test-rest test-transformers check docs format benchmark clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY)  ## make the virtual environment and install the package into it

$(READY): pyproject.toml $(CONSTRAINTS)
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable ".[dev]"
	touch $@

quickstart: $(READY)  ## train three encodings on generated sentences, test them up to four times as long: one table
	$(RUN) train.py configs/quickstart.yaml

checkpoints: quickstart  ## the quickstart's models as one file for a release, dist/quickstart-models.tar.gz
	mkdir -p dist
	tar -czf dist/quickstart-models.tar.gz -C runs $$(cd runs && ls -d quickstart/*/model)

dist: $(READY)  ## the package as a wheel in dist/, checked by twine
	rm -f dist/*.whl
	$(RUN) -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(RUN) -m twine check --strict dist/*.whl

test: $(READY)  ## the fast tests, on a few encodings (TESTS="FILE ..." for some of them)
	$(PYTEST) -m "not full and not slow" $(TESTS)

test-all: $(READY)  ## the same and the tests of every encoding, without the longer proofs
	$(PYTEST) -m "not slow" $(TESTS)

test-slow: $(READY)  ## the longer proofs alone: trainings, processes, kills, browsers
	$(PYTEST) -m slow $(TESTS)

# One more than there are cores, because many of these wait for other processes.
test-rest: WORKERS = $$($(RUN) -c "import os; print(os.cpu_count() + 1)")
test-rest: $(READY)  ## all that `make test` leaves out
	$(PYTEST) -m "full or slow" $(TESTS)

test-transformers: $(READY)  ## what depends on transformers: a few encodings; of all, what compatibility.md says
	$(PYTEST) -m "not slow and (not full or capability) and not (full and decoding)" $(DEPENDENT)

check: $(READY)  ## lint of code and prose, types, directions of imports, and transformers' rules for models
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports --no-logo
	$(RUN) .ci/lint_models.py
	$(RUN) .ci/lint_prose.py

docs: $(READY)  ## the pages as a site, site/index.html; a link that leads nowhere is an error
	$(RUN) docs/site_pages.py build/pages
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

format: $(READY)  ## format the code
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

benchmark: $(READY)  ## the cost of a step of training and of decoding under each encoding, and of batches
	$(RUN) benchmarks/training_step.py
	$(RUN) benchmarks/decoding_step.py
	$(RUN) benchmarks/batching.py

clean:  ## remove the virtual environment and what tools left behind; runs stay
	rm -rf .venv .venv-oldest .venv-newest .venv-wheel .pytest_cache .ruff_cache .mypy_cache build dist site
