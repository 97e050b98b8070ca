# make demo   the main job on real text, from nothing to mask filling (about five minutes after the installation)
# make test   style, types and tests, as CI runs them
# make test-slow   long tests: campaigns of kills, damaged files and disk faults, full-size examples
# make test-sanitize   the kernels under AddressSanitizer and UndefinedBehaviorSanitizer, on native and emulated instruction sets
# make test-machines   tests of kernels, models, training and resume as on lesser processors, with one and two threads
# make test-browser   the server's page in Chromium (Debian's chromium and chromium-driver; npm gets axe-core)
# make wheels   dist/: a wheel with prebuilt kernels for each architecture, checked by auditwheel
# make docs   build/site: the documentation as a site, with a reference of the public names; every link is checked
# make release   dist/: the source and the wheels of this version, checked and tried in fresh environments
# make test-arm   the kernels for aarch64, in an emulator (Debian's g++-aarch64-linux-gnu and qemu-user)
PYTHON ?= python3
BIN := .venv/bin

MACHINES ?= x86_64 aarch64

.PHONY: install demo test tests test-slow test-arm test-machines test-sanitize test-browser wheels release docs check style types \
    clean

install: .venv/installed

# Python compiles what is imported; pip would spend a minute on 19,000 modules, most of which nobody imports.
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) torch
	$(PIP_INSTALL) --editable '.[test]'
	$(BIN)/python -m compileall -q -j 0 src
	touch $@

demo: install
	PATH="$(CURDIR)/$(BIN):$$PATH" bash demo/run.sh

check: style types

style: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

# mypy has one thread and takes minutes, so it runs beside the tests.
test: style
	$(MAKE) --jobs 2 types tests

# A process for each core, of one thread each; a file's tests stay together, for what they share. conftest.py orders them.
tests: install
	BERTWRIGHT_REQUIRE_NATIVE=1 OMP_NUM_THREADS=1 $(BIN)/pytest -m 'not slow' --numprocesses auto \
	    --dist loadfile --no-loadscope-reorder

test-slow: install
	$(PIP_INSTALL) --editable '.[slow]'
	$(BIN)/pytest -m slow

# The tests that compare kernels with their reference implementations; each call is sent to an emulated processor.
test-arm: install
	for level in armv8.2-a-bf16 armv8.2-a-dotprod armv8-a; do \
	    EMULATED_LEVEL=$$level OMP_NUM_THREADS=2 PYTHONPATH=tests/kernels $(BIN)/pytest -p emulated_kernels \
	        -k 'not tile_registers' tests/kernels/test_fused_ops.py tests/kernels/test_attention.py \
	        tests/kernels/test_cross_attention.py tests/kernels/test_int8_linear.py \
	        tests/systems/test_bert_encoder.py || exit 1; \
	done

test-sanitize: install
	$(BIN)/python tests/kernels/instruction_sets.py

test-machines: install
	$(BIN)/python tests/machines.py

docs: install
	$(PIP_INSTALL) --editable '.[docs]'
	$(BIN)/python docs/make_site.py

test-browser: install
	$(PIP_INSTALL) --editable '.[browser]'
	npm pack --silent --pack-destination .venv axe-core@4.14.1 && tar -xzf .venv/axe-core-4.14.1.tgz -C .venv
	AXE=.venv/package/axe.min.js $(BIN)/pytest -m slow tests/browser

# What an earlier build has left in build/ would get into the wheel.
wheels: install
	for machine in $(MACHINES); do \
	    rm -rf build && BERTWRIGHT_WHEEL=$$machine $(BIN)/pip wheel --quiet --no-deps --no-build-isolation \
	        --wheel-dir build/wheels . && \
	    PATH="$(abspath $(BIN)):$$PATH" auditwheel repair --plat auto --wheel-dir dist \
	        build/wheels/*_$$machine.whl && ls dist/*manylinux_2_2[0-8]_$$machine.whl || exit 1; \
	done

# The wheel for any machine is made from the source archive, so that the archive is known to be complete.
release: install
	$(PIP_INSTALL) --editable '.[release]'
	rm -rf dist && $(BIN)/python -m build --outdir dist
	$(MAKE) wheels
	$(BIN)/python tests/release.py dist

clean:
	rm -rf .venv demo-run build dist *.egg-info src/*.egg-info
