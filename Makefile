# Every target runs in .venv, or .venv-cuda for SAFEOPS_BUILD=cuda, which belong to this file: made
# when missing, made anew when half made, moved or without their Python. `make` lists the targets.

PYTHON ?= python3
SAFEOPS_BUILD ?= cpu

CUDA := $(filter cuda,$(SAFEOPS_BUILD))
VENV := .venv$(CUDA:%=-%)
PY := $(VENV)/bin/python
PIP := $(PY) -m pip
PINS := sed $(if $(CUDA),-e '/^torch==/d' -e 's/^. cuda: //',-e '') requirements-dev.txt
BUILT := $(VENV)/built-$(SAFEOPS_BUILD)
CSRC := $(shell find csrc -name '*.h' -o -name '*.inc' -o -name '*.cpp' -o -name '*.cu*')
FORMATTED := $(CSRC) $(wildcard tests/cuda_emulation/*.h tests/cuda_emulation/*.cu*)

CUDA_FOLDER := $(or $(CUDA_HOME),$(CUDA_PATH))
NVCC := $(if $(CUDA_FOLDER),$(wildcard $(CUDA_FOLDER)/bin/nvcc),$(or $(shell command -v nvcc 2>/dev/null),$(wildcard /usr/local/cuda/bin/nvcc)))
CUDA_TREE := build/cuda
CUDA_PY := cd $(CUDA_TREE) && SAFEOPS_KERNELS=require $(CURDIR)/$(PY)
EMULATED_TESTS := $(patsubst %,tests/test_%.py,contract half shapes switch gradients_cuda \
  gradients_cuda_clip cuda_elementwise cuda_rows cuda_rows_ragged rows_accuracy rows_contract \
  rows_half rows_layouts rows_logsumexp rows_mask rows_raw rows_shapes)

# The stamp of a whole environment holds the Python version and the folder. A PYTHON that was asked
# for must be that version; else the one in there is as good as any.
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
ASKED := $(if $(filter file,$(origin PYTHON)),$(PY),$(PYTHON))
WHOLE := $(shell $(PY) -c '' 2>/dev/null && \
           test "$$(cat $(VENV)/installed 2>/dev/null)" = "$$($(ASKED) -c '$(VERSION)' 2>/dev/null) $$PWD" && echo yes)

ifeq ($(SAFEOPS_BUILD),none)
export SAFEOPS_KERNELS := off
endif

.PHONY: help demo test slow emulated cuda-check cuda-checks lint format bench clean anew

help:
	@echo "make demo        train a model that dies of NaN, and the same model that does not"
	@echo "make test        the default tests"
	@echo "make slow        the exhaustive sweeps, many minutes"
	@echo "make emulated    tests of the ops on the CUDA kernels, emulated on the CPU"
	@echo "make cuda-check  build the CUDA kernels, look into them, test that build; needs no GPU"
	@echo "make lint        ruff, mypy, clang-format"
	@echo "make format      rewrite the files as lint wants them"
	@echo "make bench       the benchmarks"
	@echo "make clean       remove .venv, .venv-cuda and everything built"
	@echo
	@echo "PYTHON=python3.12 make test     uses that Python (3.10 or newer)"
	@echo "SAFEOPS_BUILD=none make test    builds no kernels and needs no compiler"
	@echo "SAFEOPS_BUILD=cuda make test    builds those for CUDA too, in .venv-cuda; needs nvcc"

demo: $(BUILT)
	$(VENV)/bin/safeops demo

test: $(BUILT)
	$(PY) -m pytest -n auto --maxprocesses 8

slow: $(BUILT)
	$(PY) -m pytest -m slow

bench: $(BUILT)
	$(PY) -m benchmarks

emulated: $(BUILT)
	for schedule in forward shuffled:1; do \
	  SAFEOPS_CUDA_SCHEDULE=$$schedule $(PY) -m pytest -p tests.cuda_emulation.plugin \
	    -n auto --maxprocesses 8 -k "not formulas and not composite" $(EMULATED_TESTS) || exit 1; \
	done

cuda-check:
	@test -n "$(NVCC)" || echo "-- LEFT OUT: the check of the CUDA build, because there is no nvcc (on the PATH, in CUDA_HOME or /usr/local/cuda)" >&2
	@test -z "$(NVCC)" || $(MAKE) --no-print-directory SAFEOPS_BUILD=cuda cuda-checks

# In a copy, and whole: the extension in safeops/ stays that of this folder, and the log of the
# build names every kernel.
cuda-checks: $(VENV)/installed
	@rm -rf $(CUDA_TREE) $(VENV)/built-* && mkdir -p $(CUDA_TREE)
	@$(PY) -m build --sdist --no-isolation --outdir $(CUDA_TREE) . >$(CUDA_TREE)/sdist.log 2>&1 || { cat $(CUDA_TREE)/sdist.log; exit 1; }
	@tar -xzf $(CUDA_TREE)/*.tar.gz --strip-components=1 -C $(CUDA_TREE)
	@echo "-- Building safeops with CUDA in $(CUDA_TREE); this takes minutes"
	@cd $(CUDA_TREE) && SAFEOPS_BUILD=cuda TORCH_CUDA_ARCH_LIST="8.0;9.0;10.0+PTX" NVCC_APPEND_FLAGS="-Xptxas -v" MAX_JOBS=$$(nproc) \
	  $(CURDIR)/$(PIP) install -v --no-build-isolation -e . >build.log 2>&1 || { cat build.log; exit 1; }
	$(CUDA_PY) -m tests.cuda_check build.log
	$(CUDA_PY) -m pytest -m cuda_build tests/test_cuda_build.py
	$(CUDA_PY) -m pytest -n auto --maxprocesses 8

lint: $(VENV)/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(FORMATTED)

format: $(VENV)/installed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/clang-format -i $(FORMATTED)

clean:
	rm -rf .venv .venv-cuda build dist *.egg-info safeops/_C.*
	find . -name __pycache__ -o -name '.*_cache' | xargs rm -rf

# The stamps are written last, so that a step that was cut short is done again.

$(VENV)/installed: requirements-dev.txt $(if $(WHOLE),,anew)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("safeops needs Python 3.10 or newer, and $(PYTHON) is %d.%d: PYTHON=python3.12 make ..." % sys.version_info[:2])'
	@test -n "$(WHOLE)" || { echo "-- Making $(VENV)"; $(PYTHON) -m venv --clear $(VENV); } || \
	  { echo "No virtual environment: install the venv module of $(PYTHON) (on Debian: apt install python3-venv)"; exit 1; }
	@rm -f $@
	@echo "-- Installing what requirements-dev.txt pins; torch is the large one, it can take minutes"
	@$(PINS) | $(PIP) install -r /dev/stdin
	@echo "$$($(PY) -c '$(VERSION)') $$PWD" > $@

$(BUILT): $(VENV)/installed setup.py pyproject.toml safeops/_version.py $(CSRC)
	@rm -f .venv*/built-*
	@echo "-- Building safeops, SAFEOPS_BUILD=$(SAFEOPS_BUILD); the kernels take a minute or two the first time"
	@SAFEOPS_BUILD=$(SAFEOPS_BUILD) $(PIP) install --no-build-isolation -e .
	@$(PY) -c 'import safeops; print("-- Kernels:", safeops.why_not_kernel() or "ready")'
	@touch $@
