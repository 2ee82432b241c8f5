# Every target runs in .venv, which belongs to this file: made when it is missing, made anew when
# it is half made, was moved or lost its Python. `make` lists the targets.

PYTHON ?= python3
SAFEOPS_BUILD ?= cpu

PY := .venv/bin/python
PIP := $(PY) -m pip
BUILT := .venv/built-$(SAFEOPS_BUILD)
CSRC := $(shell find csrc -name '*.h' -o -name '*.inc' -o -name '*.cpp')

# The stamp of a whole .venv holds the Python version and the folder. A PYTHON that was asked for
# must be that version; else the one in .venv is as good as any.
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
ASKED := $(if $(filter file,$(origin PYTHON)),$(PY),$(PYTHON))
WHOLE := $(shell $(PY) -c '' 2>/dev/null && \
           test "$$(cat .venv/installed 2>/dev/null)" = "$$($(ASKED) -c '$(VERSION)' 2>/dev/null) $$PWD" && echo yes)

ifeq ($(SAFEOPS_BUILD),none)
export SAFEOPS_KERNELS := off
endif

.PHONY: help demo test slow lint format bench clean anew

help:
	@echo "make demo    train a model that dies of NaN, and the same model that does not"
	@echo "make test    the default tests"
	@echo "make slow    the exhaustive sweeps, many minutes"
	@echo "make lint    ruff, mypy, clang-format"
	@echo "make format  rewrite the files as lint wants them"
	@echo "make bench   the benchmarks"
	@echo "make clean   remove .venv and everything built"
	@echo
	@echo "PYTHON=python3.12 make test     uses that Python (3.10 or newer)"
	@echo "SAFEOPS_BUILD=none make test    builds no kernels and needs no compiler"

demo: $(BUILT)
	.venv/bin/safeops demo

test: $(BUILT)
	$(PY) -m pytest -n auto --maxprocesses 8

slow: $(BUILT)
	$(PY) -m pytest -m slow

bench: $(BUILT)
	$(PY) -m benchmarks

lint: .venv/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	.venv/bin/clang-format --dry-run -Werror $(CSRC)

format: .venv/installed
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	.venv/bin/clang-format -i $(CSRC)

clean:
	rm -rf .venv build dist *.egg-info safeops/_C.*
	find . -name __pycache__ -o -name '.*_cache' | xargs rm -rf

# The stamps are written last, so that a step that was cut short is done again.

.venv/installed: requirements-dev.txt $(if $(WHOLE),,anew)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("safeops needs Python 3.10 or newer, and $(PYTHON) is %d.%d: PYTHON=python3.12 make ..." % sys.version_info[:2])'
	@test -n "$(WHOLE)" || { echo "-- Making .venv"; $(PYTHON) -m venv --clear .venv; } || \
	  { echo "No virtual environment: install the venv module of $(PYTHON) (on Debian: apt install python3-venv)"; exit 1; }
	@rm -f $@
	@echo "-- Installing what requirements-dev.txt pins; torch is the large one, it can take minutes"
	@$(PIP) install -r requirements-dev.txt
	@echo "$$($(PY) -c '$(VERSION)') $$PWD" > $@

$(BUILT): .venv/installed setup.py pyproject.toml safeops/_version.py $(CSRC)
	@rm -f .venv/built-*
	@echo "-- Building safeops, SAFEOPS_BUILD=$(SAFEOPS_BUILD); the kernels take a minute or two the first time"
	@SAFEOPS_BUILD=$(SAFEOPS_BUILD) $(PIP) install --no-build-isolation -e .
	@$(PY) -c 'import safeops; print("-- Kernels:", safeops.why_not_kernel() or "ready")'
	@touch $@
