# Two commands: `make demo` shows what moiety does, `make test` runs the whole gate.
PYTHON ?= python3
BIN := .venv/bin
# The data sets that are too large to ship; tests that need them skip where the folder is absent.
DATA := $(wildcard $(CURDIR)/../shared/data)
ifneq ($(DATA),)
export MOIETY_DATA ?= $(DATA)
endif

# Tests start Python again and again, and two of them read every file of tests: what Python compiled is kept.
unexport PYTHONDONTWRITEBYTECODE

# Tests that other targets run: faults of a federation, with those between real processes, and Ray, with the heavy
# libraries. They wait for processes more than they compute.
FAULTS := tests/deploy/test_faults.py tests/deploy/test_lying_devices.py tests/deploy/test_superlink_trouble.py
RAY := tests/engines/test_ray.py

# Tests that try a sample in the gate, and all of it at night.
NIGHTLY := tests/engines/test_storage_faults.py tests/engines/test_storage_damage.py tests/engines/test_killed_run.py \
	tests/engines/test_resume.py tests/conformance/test_conformance_engines.py \
	tests/conformance/test_conformance_processes.py tests/data/test_folder.py tests/engines/test_estimator.py tests/fuzz \
	tests/recipes/test_fetched_data.py tests/experiments/test_recommend.py \
	tests/conformance/test_safeguard_conformance.py

.PHONY: demo test test-extras test-browser test-deploy docs mypy pytest nightly pins deviations bench bench-quick install format clean

demo: install
	$(BIN)/moiety run quickstart

test: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python docs/deviations.py --check
	$(BIN)/python docs/data_sets.py --check
	$(MAKE) --no-print-directory --jobs 2 mypy pytest

# Beside each other: types are checked on the core that tests, which wait for processes now and then, leave free.
mypy: install
	$(BIN)/mypy

# Tests write many small files, in memory where that has two gigabytes to spare. They stay where a test fails.
pytest: install
	@spare=$$(df --output=avail /dev/shm 2>/dev/null | tail -n 1); test "$${spare:-0}" -gt 2000000 && where="-p /dev/shm"; \
		place=$$(mktemp -d $$where) && \
		OMP_NUM_THREADS=1 PYTEST_DEBUG_TEMPROOT=$$place $(BIN)/pytest -n 3 $(addprefix --ignore=,$(FAULTS) $(RAY)) && rm -rf $$place

# Tests that need heavy libraries (transformers, peft, timm, torchvision, datasets, ONNX, Optuna, trackers) get an
# environment of their own on top of the other: torchmetrics imports torchvision where it finds it, so the gate must
# not see it. torch is in the environment below, so pip cannot replace it by another build. So is Ray, whose tests follow.
test-extras:
	@start=$$(date +%s) && $(MAKE) --no-print-directory .venv/extras/installed && installed=$$(date +%s) && \
		MOIETY_EXTRAS=1 OMP_NUM_THREADS=1 .venv/extras/bin/python -m pytest -n 2 --dist=load tests/extras && \
		OMP_NUM_THREADS=1 $(BIN)/pytest $(RAY) && \
		echo "test-extras: installed in $$((installed - start)) s, tested in $$(($$(date +%s) - installed)) s"

# The site, in build/site: notebooks are executed, links and spelling checked, commands and files of the pages run. The
# files of a release are built and checked; a newcomer's walk and a typed program run with the wheel, outside the
# repository; the site is opened in headless Chromium where there is one.
# A tutorial starts Flower's commands, which are in the environment below.
docs: export PATH := $(CURDIR)/$(BIN):$(PATH)
docs:
	@start=$$(date +%s) && $(MAKE) --no-print-directory .venv/docs/installed && installed=$$(date +%s) && \
		NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 .venv/docs/bin/python -m mkdocs --quiet build && \
		.venv/docs/bin/python -m codespell_lib *.md docs examples src .github && \
		MOIETY_SITE=1 OMP_NUM_THREADS=1 .venv/docs/bin/python -m pytest -rs -n 2 tests/site && \
		MOIETY_BROWSER=1 OMP_NUM_THREADS=1 .venv/docs/bin/python -m pytest -rs tests/in_browser/test_built_site.py && \
		echo "docs: installed in $$((installed - start)) s, built and tested in $$(($$(date +%s) - installed)) s"

# An environment on top of the other, with an extra of that name.
.venv/%/installed: .venv/installed
	$(BIN)/python -m venv --without-pip .venv/$*
	site=$$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") && \
		echo "import site; site.addsitedir('$$site')" > \
		$$(.venv/$*/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/below.pth
	.venv/$*/bin/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[$*]'
	touch $@

# Federations of real processes (SuperLink, nodes, workers) on this machine, over TLS: equal to the simulation, nothing
# personal on the wire, killed and cut off. One after another: each has ten processes. `make nightly` tries more of it.
test-deploy: install
	@start=$$(date +%s) && OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(FAULTS) && \
		MOIETY_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/deploy/processes && \
		echo "test-deploy: tested in $$(($$(date +%s) - start)) s"

# The report, the live page and the site in headless Chromium (Debian: apt-get install chromium chromium-driver); without one the
# tests skip and say so.
test-browser: .venv/browser/installed
	MOIETY_BROWSER=1 OMP_NUM_THREADS=1 .venv/browser/bin/python -m pytest -rs tests/in_browser

# What is too long for the gate: planted faults; every call of the disk fails once; a thousand flipped bits and cut
# files; runs that are killed at every change of their folder, and again and again; eleven thousand fuzzed inputs
# and folders; conformance rows on all clients that the gate has on few; every recipe to its page on small fetched
# files; all of test-deploy.
nightly: install
	$(BIN)/python -m benchmarks.faults
	MOIETY_NIGHTLY=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 $(NIGHTLY)
	$(BIN)/python tests/engines/kill_kinds.py --kills 200
	MOIETY_NIGHTLY=1 MOIETY_DEPLOY=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/deploy/processes

# Where numbers change on purpose: writes them to tests/golden/pins and says which changed.
pins: install
	$(BIN)/python tests/golden/pin.py

# Copies what algorithms' files and pages say (deviations, local work, names) into the other pages that have it.
deviations: install
	$(BIN)/python docs/deviations.py

# Some two hours on two quiet cores; it says how long is left, what matters most comes first, and a bench
# that was stopped goes on where it was. Builds an environment for each peer. Tables go to docs/benchmarks.md.
bench: install
	$(BIN)/python -m benchmarks.bench

# Five minutes, while one works on speed: few rounds, without peers, nothing written.
bench-quick: install
	$(BIN)/python -m benchmarks.run --quick --no-peers --turns 2 --works a,b,d,g,h,1e4,1e7
	$(BIN)/python -m benchmarks.start_up --quick --turns 3
	$(BIN)/python -m benchmarks.leader --quick --turns 3

install: .venv/installed

# torch goes in first and pinned, so that no other package can pull another build of it.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv build dist
