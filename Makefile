# `make search` does the main job, or replays it where there is no GPU; `make test` passes the tests. Each sets itself up
# on a machine that has Python 3.11 or newer with venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
FAMILY ?= selective_scan
ARGUMENTS ?=
# What a machine without a GPU replays: a GPU of which recordings ship, or a file.
REPLAY ?= h200
GPU := $(or $(wildcard /dev/nvidiactl),$(shell nvidia-smi -L 2>/dev/null))
USER_VENV := .venv/user
REPLAY_VENV := .venv/replay
TEST_VENV := .venv/test

.PHONY: search test lint types tests clean

ifneq ($(GPU),)
search: $(USER_VENV)/installed
	$(USER_VENV)/bin/ktune search $(FAMILY) $(ARGUMENTS)
else
search: $(REPLAY_VENV)/installed
	@echo "There is no NVIDIA GPU here: this replays what was recorded on one ($(REPLAY)), and measures nothing."
	$(REPLAY_VENV)/bin/ktune search $(FAMILY) --replay $(REPLAY) $(ARGUMENTS)
endif

test: lint types tests

lint: $(TEST_VENV)/installed
	$(TEST_VENV)/bin/ruff check .

types: $(TEST_VENV)/installed
	$(TEST_VENV)/bin/mypy

tests: $(TEST_VENV)/installed
	$(TEST_VENV)/bin/pytest -m 'not gpu and not slow' -n 2

clean:
	rm -rf .venv build dist

# GPU machines bring their own torch, built for their driver: --system-site-packages lets pip keep it.
$(USER_VENV)/installed: pyproject.toml | python
	$(PYTHON) -m venv --system-site-packages $(USER_VENV)
	extra=; command -v nvcc >/dev/null || [ -n "$$CUDA_HOME$$CUDA_PATH" ] || extra='[nvcc]'; \
	$(USER_VENV)/bin/python -m pip install --quiet -e ".$$extra"
	touch $@

# A replay needs neither torch nor CUDA, which are gigabytes: only the other dependencies are fetched, into an
# environment of its own, so that a machine that is given a GPU later does not search with one that lacks torch.
NOT_FOR_REPLAYS := torch cuda-bindings
$(REPLAY_VENV)/installed: pyproject.toml | python
	$(PYTHON) -m venv --system-site-packages $(REPLAY_VENV)
	$(REPLAY_VENV)/bin/python -c 'import re, sys, tomllib; \
		needed = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; \
		print(*(d for d in needed if re.match("[A-Za-z0-9-]+", d)[0] not in sys.argv[1:]), sep="\n")' \
		$(NOT_FOR_REPLAYS) > $(REPLAY_VENV)/requirements.txt
	$(REPLAY_VENV)/bin/python -m pip install --quiet -r $(REPLAY_VENV)/requirements.txt
	$(REPLAY_VENV)/bin/python -m pip install --quiet --no-deps -e .
	touch $@

$(TEST_VENV)/installed: pyproject.toml constraints/ci.txt | python
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install --quiet -c constraints/ci.txt -e '.[dev]'
	touch $@

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "error: ktune needs Python 3.11 or newer; make PYTHON=/path/to/python3.12" >&2; exit 3; }
