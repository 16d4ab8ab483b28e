# Five verbs. Each prepares a virtual environment first; a second call finds it ready and does no work.
#
#   make demo     run the main job          make lint     ruff and mypy
#   make test     run the tests             make bench    measure the benchmark suite
#
# `make test PY=python` uses an environment that is there already (a GPU machine with its own torch,
# say) and installs nothing into it. ARGS adds arguments: `make test ARGS="-m gpu -k tccg"`.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

ifdef PY
READY :=
export PYTHONPATH := src$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY    := $(VENV)/bin/python
READY := $(VENV)/.installed
endif

.PHONY: help demo test lint bench browser clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 6

demo: $(READY)
	$(PY) -m weft demo $(ARGS)

# A process for each core; the tests of one file stay together, as they share what they have made.
test: $(READY) $(if $(READY),browser)
	$(PY) -m pytest -n auto --dist loadfile $(ARGS)

# The page of results is looked at in Chromium. Where it is absent and may be installed it is; else that test is skipped.
browser:
	@if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "installing Chromium for the tests of pages"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 300 apt-get update && timeout 600 apt-get install -y --no-install-recommends chromium; } \
	    >/dev/null 2>&1 || echo "Chromium cannot be installed here: the tests of pages will be skipped"; \
	fi

lint: $(READY)
	$(PY) -m ruff check src tests
	$(PY) -m mypy

bench: $(READY)
	$(PY) -m weft bench tccg $(ARGS)

clean:
	rm -rf $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "weft needs Python 3.11 or newer as $(PYTHON); name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	  exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; \
	  exit 1; }
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[test,dev]'
	@touch $@
