# `make search` does the main job, `make test` passes the tests; each sets itself up on a machine that has
# Python 3.11 or newer with venv.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
FAMILY ?= selective_scan
ARGUMENTS ?=
USER_VENV := .venv/user
TEST_VENV := .venv/test

.PHONY: search test lint types tests clean

search: $(USER_VENV)/installed
	$(USER_VENV)/bin/ktune search $(FAMILY) $(ARGUMENTS)

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

$(TEST_VENV)/installed: pyproject.toml constraints/ci.txt | python
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install --quiet -c constraints/ci.txt -e '.[dev]'
	touch $@

.PHONY: python
python:
	@test -n "$(PYTHON)" || { echo "error: ktune needs Python 3.11 or newer; make PYTHON=/path/to/python3.12" >&2; exit 3; }
