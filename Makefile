# Two commands do everything on a fresh machine with Python 3.11+:
#   make crawl URL=https://example.org ARGS="--contact https://you.example/bot"
#   make test
PYTHON ?= python3
VENV   ?= .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
URL    ?=
ARGS   ?=

# For the shell as one word, whatever is in it: URLs are full of "&".
quoted = '$(subst ','\'',$(1))'

.PHONY: crawl fleet test check format bench soak sim soak-sim docs lock clean install whole

install: $(STAMP)

# Exact versions from the lock file first, then amble itself without looking for anything newer.
$(STAMP): requirements.lock pyproject.toml setup.py src/amble/_native.c src/amble/_page.h
	@command -v $(PYTHON) >/dev/null || { echo "amble needs Python 3.11 or newer: set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "amble needs Python 3.11 or newer; $(PYTHON) is older: set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { echo "cannot make a virtual environment: install the venv module of $(PYTHON)"; exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(PY) -m compileall -q src/amble
	@touch $(STAMP)

crawl: $(STAMP)
ifeq ($(strip $(URL)),)
	@$(PY) -m tests.web demo $(ARGS)
else
	@$(VENV)/bin/amble crawl $(foreach url,$(URL),$(call quoted,$(url))) $(ARGS)
endif

# A fleet on this machine: agents, parse workers and a PostgreSQL server of their own.
fleet: $(STAMP)
	@$(VENV)/bin/amble fleet $(foreach url,$(URL),$(call quoted,$(url))) $(ARGS)

# Most tests wait more than they compute, so there are more workers than cores; a file stays with one worker.
test: $(STAMP)
	$(PY) -m pytest -q -n 4 --dist loadfile

check: $(STAMP)
	$(VENV)/bin/ruff format --check src tests bench tools
	$(VENV)/bin/ruff check src tests bench tools
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) -m pytest -q tests/house

format: $(STAMP)
	$(VENV)/bin/ruff format src tests bench tools
	$(VENV)/bin/ruff check --fix src tests bench tools

docs: $(STAMP)
	$(PY) tools/lifecycle_doc.py
	$(PY) tools/reference_docs.py
	$(PY) tools/capacity_doc.py

bench: $(STAMP)
	@$(PY) -m compileall -q src/amble
	$(PY) -m bench $(ARGS)

soak: $(STAMP)
	$(PY) -m pytest -q -m soak --timeout 7200 tests/whole $(ARGS)

# SEEDS=A..B and PROFILE=calm|default|hostile choose others.
sim: $(STAMP)
	$(VENV)/bin/amble simulate --seeds $(or $(SEEDS),0..199) --profile $(or $(PROFILE),default) $(ARGS)

soak-sim: $(STAMP)
	$(VENV)/bin/amble simulate --seeds $(or $(SEEDS),0..4999) --profile default $(ARGS)
	$(VENV)/bin/amble simulate --seeds $(or $(SEEDS),0..4999) --profile hostile $(ARGS)

lock: $(STAMP)
	@test -x $(VENV)/bin/uv || $(PY) -m pip install --quiet --disable-pip-version-check uv
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --extra dev --python-version 3.11 --no-header --no-emit-index-url --output-file requirements.lock pyproject.toml tools/build-requirements.in

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
