# Each verb prepares a virtual environment first; a second call finds it ready and does no work.
#
#   make demo      run the main job          make lint     ruff and mypy
#   make test      run the tests             make bench    measure the benchmark suite
#   make figures   measure what README quotes, on a GPU, three quarters of an hour
#   make study     random schedules, ladders with counters and joules, the machine itself: a GPU, half an hour
#   make evidence  all of these and more at one commit, nine minutes (MINUTES) a call, until all is done: a GPU
#   make docs      render the pages          make dist     build wheels and sdists
#   make release   install both anew, in empty environments of each Python here
#   make test-all  run the slow tests too, and those of pages: installs Chromium where it may
#   make test-gpu  run the tests that need a GPU, some minutes on one
#   make test-tritons  cross-compile with each Triton that is supported, some minutes each
#   make profiles      profile the cases of TCCG that are furthest from their floor, on a GPU, five minutes
#   make kernels   build all that weft-tensor-kernels holds: object code for every level of CPUs, most of an hour on two cores
#   make tapp      build contractions for C and Fortran, a shared library by TAPP: packages/weft-tapp
#   make sanitize      compute-sanitizer and Triton's own on every family's kernels, on a GPU, some minutes
#
# `make test PY=python` uses an environment that is there already (a GPU machine with its own torch,
# say) and installs nothing into it. ARGS adds arguments: `make test-gpu ARGS="-k tccg"`.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

ifdef PY
READY :=
# Without an installation the entry points of weft-tensor-bench are read from what stands in its project file.
METADATA := $(shell $(PY) tools/entry_points.py packages/weft-bench out/metadata)
export PYTHONPATH := src:packages/weft-bench/src:packages/weft-kernels/src:$(METADATA)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
PY    := $(VENV)/bin/python
READY := $(VENV)/.installed
endif

# What `make figures` measures: a folder of RESULTS each, and what `weft bench` is told for it. FIGURES="call dense"
# measures those two; the summary is of all that lie there. What was cut off goes on, and what another commit measured is
# refused: it is moved or removed first.
RESULTS ?= out/figures
FIGURES ?= tccg tccg-bf16 tccg-tf32 tccg-fp64 tccg-fusion beyond dense epilogue weights algebra numbers permute \
  transpose call nn small networks
PROFILED ?= 01 04 13 14 16 19 20 31 40 46
OUTLIERS ?= 13 14 20 22 24 28 30 41  # that the GETT paper looks at one by one

RUN_tccg        := tccg --peers cutensor,torch --quick --budget 0.03
RUN_tccg-bf16   := tccg --dtypes bf16_fp32 --peers cutensor --quick --budget 0.02
RUN_tccg-tf32   := tccg --dtypes tf32 --peers cutensor --quick --budget 0.02
RUN_tccg-fp64   := tccg --dtypes fp64 --peers cutensor --quick --budget 0.02
RUN_tccg-fusion := tccg-fusion --peers cutensor,torch,weft-same --quick --budget 0.02
RUN_beyond      := beyond --peers cutensor,torch --quick --budget 0.02
RUN_dense       := dense --quick --budget 0.03
RUN_epilogue    := epilogue --budget 0.3
RUN_weights     := weights --peers cublas,torch
RUN_algebra     := algebra --budget 0.05
RUN_numbers     := numbers --quick --budget 0.03
RUN_permute     := permute --quick --budget 0.02
RUN_transpose   := transpose --quick --budget 0.05
RUN_call        := call --quick --budget 0.1
RUN_nn          := nn --budget 0.1 --peers weft-compiled,torch,compile
RUN_small       := small
RUN_networks    := networks --budget 0.2

# Tritons that `make test-tritons` compiles with, each unpacked into a folder of its own.
TRITONS ?= 3.6.0 3.7.1 3.8.0 3.9.0

# Modules of the environment and of the tests are compiled once: without this, in each of the processes of a run.
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help demo test test-all test-gpu test-tritons sanitize lint bench figures profiles browser clean \
  $(FIGURES:%=figure-%) $(TRITONS:%=test-triton-%)

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 15

demo: $(READY) $(if $(READY),$(VENV)/.kernels)
	$(PY) -m weft demo $(ARGS)

.PHONY: tapp
tapp:
	$(MAKE) -C packages/weft-tapp

# Object code for every level of CPUs, whatever this one is.
.PHONY: kernels
kernels: $(READY)
	$(PY) -m weft_kernels.build_cpu $(ARGS)

# That of this machine's CPU, a minute on two cores; some seconds where nothing has changed that it is made of.
KERNEL_CODE := $(wildcard packages/weft-kernels/src/weft_kernels/*cpu*.py \
  src/weft/cpu/*.py src/weft/cpu/*/*.py src/weft/fn/numba/*.py)

$(VENV)/.kernels: $(VENV)/.installed $(KERNEL_CODE)
	$(VENV)/bin/python -m weft_kernels.build_cpu host --if-stale
	@touch $@

# A process for each core; the tests of one file stay together, as they share what they have made.
PYTEST := -m pytest -n auto --dist loadfile

test: $(READY)
	$(PY) $(PYTEST) $(ARGS)

# Idle processes take tests from busy ones: some files of slow tests are as long as all others together.
test-all: $(READY) $(if $(READY),$(VENV)/.docs) browser
	$(PY) -m pytest -n auto --dist worksteal -m "not gpu and not alone" $(ARGS)
	$(PY) -m pytest -m "not gpu and alone" $(ARGS)

# On a machine with a GPU: all that can be run side by side, then what measures time.
test-gpu: $(READY)
	$(PY) -m pytest -n auto --dist worksteal -m "gpu and not slow and not alone" $(ARGS)
	$(PY) -m pytest -m "gpu and not slow and alone" $(ARGS)

# No GPU is needed: kernels are compiled for all of `docs/devices.md`.
test-tritons: $(TRITONS:%=test-triton-%)

$(TRITONS:%=test-triton-%): test-triton-%: $(READY) $(VENV)/tritons/%
	TRITON_CACHE_DIR=$(abspath $(VENV)/tritons/cache-$*) \
	PYTHONPATH=$(abspath $(VENV)/tritons/$*)$(if $(PYTHONPATH),:$(PYTHONPATH)) \
	  $(PY) -m pytest -m "not gpu" $(wildcard tests/gpu/test_*compile.py) tests/gpu/test_warp_specialized.py $(ARGS)

$(VENV)/tritons/%: | $(READY)
	$(PY) -m pip install --quiet --no-deps --target $@.part triton==$*
	mv $@.part $@

# The page of results is looked at in Chromium, which the system's packages bring.
browser:
	@if { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; then :; \
	elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  echo "installing Chromium for the tests of pages"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 300 apt-get update && timeout 600 apt-get install -y --no-install-recommends chromium; } \
	    >/dev/null 2>&1 || echo "Chromium cannot be installed here: the tests of pages will be skipped"; \
	else echo "Chromium cannot be installed here: the tests of pages will be skipped"; fi

lint: $(READY)
	$(PY) -m ruff check src packages tests conftest.py tools
	$(PY) tools/words.py
	$(PY) tools/devices.py
	$(PY) tools/count_lines.py --check
	$(PY) -m mypy

# Pages to out/docs, a warning being an error.
.PHONY: docs
docs: $(READY) $(if $(READY),$(VENV)/.docs)
	$(PY) -m sphinx -W --keep-going -q docs out/docs

$(VENV)/.docs: $(VENV)/.installed
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[docs,notebooks]' --editable packages/weft-bench
	@touch $@

# Wheels and sdists to out/dist.
.PHONY: dist
dist: $(READY)
	$(PY) -m weft_kernels.build_cpu --if-stale
	$(PY) -m build --no-isolation --outdir out/dist .
	$(PY) -m build --no-isolation --outdir out/dist packages/weft-bench
	$(PY) -m build --no-isolation --outdir out/dist packages/weft-kernels
	$(PY) tools/packed.py out/dist

# The wheel and the sdist in empty environments, with dependencies from the package index, some minutes a Python.
.PHONY: release
release: $(READY)
	$(PY) tools/release.py $(ARGS)

bench: $(READY)
	$(PY) -m weft bench tccg $(ARGS)

sanitize: $(READY)
	PYTHONPATH=src:packages/weft-bench/src:tools$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) -m sanitize --out $(RESULTS)/sanitize $(ARGS)

figures: $(FIGURES:%=figure-%)
	$(PY) -m weft report --summary $$(dirname $(RESULTS)/*/run.json) --out $(RESULTS)/summary.json

$(FIGURES:%=figure-%): figure-%: $(READY)
	$(PY) -m weft bench $(RUN_$*) --out $(RESULTS)/$* --resume

# What was cut off goes on.
STUDY ?= tuning ladder micro scaling
STUDIES := $(STUDY) everyday regret cascade accuracy kernelbench pyscf cookbook
DO_tuning      := -m weft bench tuning --samples 300 --counters --out $(RESULTS)/tuning --resume
DO_ladder      := -m weft ladder all --profile --energy --out $(RESULTS)/ladder --resume
DO_micro       := -m weft micro all --out $(RESULTS)/micro
DO_scaling     := -m weft bench scaling --out $(RESULTS)/scaling --resume
DO_everyday    := -m weft bench everyday --out $(RESULTS)/everyday --resume
DO_regret      := -m weft bench regret --out $(RESULTS)/regret --resume
DO_cascade     := -m weft bench cascade --out $(RESULTS)/cascade --resume
DO_accuracy    := -m weft accuracy --out $(RESULTS)/accuracy
DO_kernelbench := -m weft bench kernelbench --out $(RESULTS)/kernelbench --resume
study-pyscf: export CUPY_ACCELERATORS = cutensor
DO_pyscf       := -m weft bench pyscf --cases '00*' --out $(RESULTS)/pyscf --resume
DO_cookbook    := -m cookbook --device cuda --missing --out $(RESULTS)/cookbook.json
.PHONY: study $(sort $(STUDIES:%=study-%))
study: $(STUDY:%=study-%)

$(sort $(STUDIES:%=study-%)): study-%: $(READY)
	PYTHONPATH=src:tools$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PY) $(DO_$*)

# All that pages quote, at one commit: `make evidence` again goes on with what is left.
MINUTES ?= 9
EVIDENCE ?= $(FIGURES:%=figure-%) $(filter-out study-scaling,$(sort $(STUDIES:%=study-%))) \
  $(sort $(PROFILED:%=profile-%) $(OUTLIERS:%=profile-%))
.PHONY: evidence $(sort $(PROFILED:%=profile-%) $(OUTLIERS:%=profile-%))
evidence: $(READY)
	$(PY) tools/evidence.py --results $(RESULTS) \
	  --minutes $(MINUTES) --make '$(MAKE) PY=$(PY) RESULTS=$(RESULTS) ARGS="--against cutensor"' $(EVIDENCE)

profiles: $(PROFILED:%=profile-%)
	$(PY) -m weft_bench.profiling.summary $(RESULTS)/profiles

$(sort $(PROFILED:%=profile-%) $(OUTLIERS:%=profile-%)): profile-%: $(READY)
	$(PY) -m weft profile tccg-$* --out $(RESULTS)/profiles/tccg-$* $(ARGS)

clean:
	rm -rf $(VENV)

# Modules are compiled when they are first imported: most never are, and compiling all takes half of the time.
$(VENV)/.installed: pyproject.toml packages/weft-bench/pyproject.toml packages/weft-kernels/pyproject.toml constraints.txt src/weft/base/version.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "weft needs Python 3.11 or newer as $(PYTHON); name another: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	  exit 1; }
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv)" >&2; \
	  exit 1; }
	$(VENV)/bin/python -m pip uninstall --quiet --yes weft weft-bench weft-kernels  # as these were called before
	$(VENV)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[cli,networks,test,dev]' --editable packages/weft-bench \
	  --editable packages/weft-kernels
	@touch $@
