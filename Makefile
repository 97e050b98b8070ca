# make demo   the main job on real text, from nothing to filled masks (about five minutes after the installation)
# make test   style, types and tests, as CI runs them
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install demo test test-slow check clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch --constraint constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test]' --constraint constraints.txt
	touch $@

demo: install
	PATH="$(CURDIR)/$(BIN):$$PATH" bash demo/run.sh

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# A process for each core, of one thread each; a file's tests stay together, for what they share.
test: check
	BERTWRIGHT_REQUIRE_NATIVE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' --numprocesses auto --dist loadfile

test-slow: install
	$(BIN)/pytest -m slow

clean:
	rm -rf .venv demo-run build *.egg-info src/*.egg-info
