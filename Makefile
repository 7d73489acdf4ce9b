# The commands of this project; CONTRIBUTING.md explains them. `make demo` and `make test` need only
# Python >= 3.11, a C++20 compiler and make: everything else goes into .venv.

PYTHON ?= python3
# ON: compiler warnings are errors, as in CI.
WERROR ?= OFF
# Passed on to pytest, to the unit tests of the core, and to the benchmarks.
PYTEST_ARGS ?=
CORE_ARGS ?=
# How many processes they run in, side by side: most tests wait, for a limit to pass or for a peer.
PYTEST_WORKERS ?= 3
PYTEST = .ci/pytest $(PYTEST_WORKERS) $(BIN)/pytest
CORE_SHARDS ?= 3
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STEP := .ci/step
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
CMAKE := $(BIN)/cmake
# The tools of .venv, whatever else is on the machine.
CONFIGURE := $(CMAKE) -S . -G Ninja --log-level=WARNING \
  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja
# Two makes at once must not build in the same directory.
LOCK = $(if $(shell command -v flock),flock build/$@.lock)

# Ranks are processes; libraries that start a thread per core in each get in each other's way.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1

CORE_TESTS := core-plain core-tsan core-asan
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test dev dev-build dev-mlx dev-mlx-build wheel lint format layering core-test \
        $(CORE_TESTS) $(CORE_TESTS:%=build-%) pytest test-foreign test-integrations test-mlx \
        test-torch-suite stubs types release death-repeat chaos bench clean FORCE

help:
	@echo 'make demo    train on 4 ranks, kill one, go on from the checkpoint'
	@echo 'make test    lint, layering, core-test, pytest with the installed wheel'
	@echo 'make docs    the documentation as HTML, in build/docs/html'
	@echo 'make dev     build the native module into src/, for PYTHONPATH=src'
	@echo 'make lint | format | layering | core-test | pytest | wheel | bench | clean'
	@echo 'make core-plain | core-tsan | core-asan'
	@echo 'make test-integrations | test-foreign | test-torch-suite | types    with torch and others installed'
	@echo 'make release | stubs    what would be released, tried; the native module'"'"'s types'

demo: $(VENV)/group-demo $(VENV)/installed
	@env -u PYTHONPATH $(BIN)/python examples/demo.py

# pytest comes last: its closing line is the result.
test: lint layering core-test pytest

# --- what is installed into .venv

# build/*.inputs change exactly when the contents that they sum up do; what is made from those
# depends on them. Unlike times, contents do not mislead after a checkout or a removed file.
WHEEL_INPUTS := core bind emulator src cmake CMakeLists.txt pyproject.toml README.md LICENSE
# Two makes may run at once.
MAKE_PID := $(shell echo $$PPID)
NEW = $@.$(MAKE_PID)
UPDATE = cmp -s $(NEW) $@ && rm $(NEW) || mv $(NEW) $@

build/python.inputs: FORCE
	@mkdir -p build
	@$(PYTHON) -c 'import sys; print(sys.version, sys.base_prefix)' > $(NEW)
	@$(UPDATE)

build/packages.inputs: FORCE
	@mkdir -p build
	@sed -n '/^dependencies/p; /^\[dependency-groups\]/,/^\[tool/p' pyproject.toml > $(NEW)
	@$(UPDATE)

build/wheel.inputs: FORCE
	@mkdir -p build
	@find $(WHEEL_INPUTS) -type f ! -name '*.pyc' ! -name '*.so' ! -name _sentinel -exec cksum {} + | \
	  LC_ALL=C sort > $(NEW)
	@$(UPDATE)

$(VENV)/ready: build/python.inputs
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'error: $(PYTHON) is older than Python 3.11; use make PYTHON=...' >&2; exit 1; }
	@$(STEP) 'make $(VENV)' $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install 'pip>=25.1'
	@touch $@

# A dependency group of pyproject.toml.
$(VENV)/group-%: build/packages.inputs $(VENV)/ready
	@$(STEP) 'install packages: $*' $(PIP) install --group $*
	@touch $@

# What standfast itself needs, so that src can be checked and run before there is a wheel.
DEPENDENCIES := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
  print(*p["project"]["dependencies"], sep="\n")

$(VENV)/dependencies: build/packages.inputs $(VENV)/ready
	@$(BIN)/python -c '$(DEPENDENCIES)' > $@.txt
	@$(STEP) 'install packages: run time' $(PIP) install -r $@.txt
	@touch $@

# MLX has wheels for some systems only; where it has none, its tests are skipped and say so.
$(VENV)/mlx: $(VENV)/ready
	@$(STEP) 'install packages: MLX' sh -c "$(PIP) install --only-binary :all: 'mlx[cpu]' || \
	  echo 'MLX has no wheel for this system: its tests will be skipped'"
	@touch $@

# MLX's own groups (mlx/): a wheel of its own, built against the MLX of .venv. Built anew when its
# sources change, or the header by which it finds the core; or MLX, by `make clean`.
build/mlx.inputs: FORCE
	@mkdir -p build
	@find mlx src/standfast/include -type f ! -name '*.pyc' ! -name '*.so' ! -name _built.py \
	  -exec cksum {} + | LC_ALL=C sort > $(NEW)
	@$(UPDATE)

$(VENV)/standfast-mlx: build/mlx.inputs $(VENV)/mlx $(VENV)/group-build | $(VENV)/installed
	@! $(BIN)/python -c 'import mlx.core' 2>/dev/null || \
	  $(STEP) 'build and install standfast-mlx' env PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) install \
	  ./mlx --no-deps --no-build-isolation --force-reinstall --config-settings build-dir=build/mlx-wheel
	@touch $@

# --- the native module and the wheel

dev: $(VENV)/group-build $(VENV)/group-test $(VENV)/group-dev $(VENV)/dependencies
	@$(LOCK) $(MAKE) --no-print-directory dev-build

build/dev/build.ninja: $(VENV)/group-build
	@rm -rf build/dev
	@$(CONFIGURE) -B build/dev -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dnanobind_ROOT=$$($(BIN)/python -m nanobind --cmake_dir) >/dev/null

# The module is moved into place, never overwritten: running processes keep what they have mapped.
dev-build: build/dev/build.ninja
	@$(CMAKE) --build build/dev --target _core _librdma -- --quiet
	@cd build/dev && for file in _core*.so emulator/_librdma.so \
	  $$(ls _sentinel 2>/dev/null); do \
	  to=../../src/standfast; name=$$(basename $$file); cmp -s $$file $$to/$$name || \
	  { cp $$file $$to/.$$name && mv $$to/.$$name $$to/$$name; } done

# src/standfast/_core.pyi, from what the native module says of itself; a test compares the two.
stubs: dev
	@PYTHONPATH=src $(BIN)/python -m nanobind.stubgen -q -m standfast._core -p bind/stub.pattern \
	  -o src/standfast/_core.pyi
	@$(BIN)/ruff format --quiet src/standfast/_core.pyi

# The same for standfast-mlx: then PYTHONPATH=src:mlx/src.
dev-mlx: dev $(VENV)/mlx
	@$(LOCK) $(MAKE) --no-print-directory dev-mlx-build

dev-mlx-build:
	@PYTHONPATH=src $(CMAKE) -S mlx -B build/mlx -G Ninja --log-level=WARNING \
	  -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DSTANDFAST_WERROR=$(WERROR) \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	  -Dnanobind_ROOT=$$($(BIN)/python -m nanobind --cmake_dir) >/dev/null
	@$(CMAKE) --build build/mlx -- --quiet
	@cd build/mlx && for file in _group*.so _built.py; do to=../../mlx/src/standfast_mlx; \
	  cmp -s $$file $$to/$$file || { cp $$file $$to/.$$file && mv $$to/.$$file $$to/$$file; }; done

wheel: build/wheel.done

build/wheel.done: build/wheel.inputs $(VENV)/group-build
	@rm -rf dist
	@$(STEP) 'build the wheel' env PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) wheel . --no-deps \
	  --no-build-isolation --wheel-dir dist --config-settings build-dir=build/wheel
	@touch $@

$(VENV)/installed: build/wheel.done $(VENV)/dependencies
	@$(STEP) 'install the wheel' $(PIP) install --force-reinstall --no-deps dist/standfast-*.whl
	@$(PIP) check
	@touch $@

# What would be released, made and tried: see there. Wheels for others' machines are cibuildwheel's.
release: $(VENV)/group-build $(VENV)/group-release
	@$(STEP) 'release' .ci/release $(BIN)/python

# --- checks

PYTHON_FILES = $(wildcard src tests examples bench mlx)
CXX_FILES = $(shell find core bind emulator mlx/native tests/core src/standfast/include \
  -name '*.h' -o -name '*.cpp' -o -name '*.inc')

lint: $(VENV)/group-dev $(VENV)/group-test $(VENV)/dependencies
	@$(STEP) 'ruff check' $(BIN)/ruff check --quiet $(PYTHON_FILES)
	@$(STEP) 'ruff format' $(BIN)/ruff format --quiet --check $(PYTHON_FILES)
	@$(STEP) 'mypy' $(BIN)/mypy --no-error-summary src tests
	@$(STEP) 'clang-format' $(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(VENV)/group-dev
	-$(BIN)/ruff check --quiet --fix $(PYTHON_FILES)
	$(BIN)/ruff format --quiet $(PYTHON_FILES)
	$(BIN)/clang-format -i $(CXX_FILES)

layering: $(VENV)/group-test
	@$(STEP) 'layering' $(BIN)/pytest -q --noconftest -p no:cacheprovider tests/test_layering.py

core-test: $(CORE_TESTS)

core-plain: SANITIZE =
core-plain: AFTER = .ci/no-shared-wide-code build/$@
core-tsan: SANITIZE = thread
core-asan: SANITIZE = address
core-tsan core-asan: AFTER = true
# Some kernels place memory where ThreadSanitizer does not expect it.
core-tsan: RUN = $(if $(shell setarch -R true 2>/dev/null && echo yes),setarch -R)

# Status 2 of .ci/doctest: it is missing and cannot be installed from here. It has said so, and the
# other checks go on.
$(CORE_TESTS): $(VENV)/group-build
	@.ci/doctest || { [ $$? -eq 2 ] && exit 0; exit 1; } && .ci/verbs && \
	$(LOCK) $(STEP) '$@: build' $(MAKE) --no-print-directory build-$@ SANITIZE=$(SANITIZE) && \
	$(AFTER) && \
	$(STEP) '$@: run' .ci/shards $(CORE_SHARDS) \
	  $(RUN) build/$@/tests/core/standfast_core_tests --no-intro $(CORE_ARGS)

$(CORE_TESTS:%=build-%): build-%:
	@$(CONFIGURE) -B build/$* -DSTANDFAST_MODULE=OFF -DSTANDFAST_TESTS=ON \
	  -DSTANDFAST_SANITIZE=$(SANITIZE) -DSTANDFAST_WERROR=$(WERROR) >/dev/null
	@$(CMAKE) --build build/$* -- --quiet

# The installed wheel is tested, so the source tree must not be on the path.
pytest: $(VENV)/group-test $(VENV)/mlx $(VENV)/installed
	@.ci/network
	@.ci/verbs
	@echo '== pytest'
	@env -u PYTHONPATH EXPECT_INSTALLED=1 $(PYTEST) $(PYTEST_ARGS)

# MLX's own groups, built here.
test-mlx: $(VENV)/group-test $(VENV)/standfast-mlx $(VENV)/installed
	@env -u PYTHONPATH EXPECT_INSTALLED=1 $(PYTEST) tests/mlx $(PYTEST_ARGS)

# Jobs of other libraries, with and without the watch; and our ranks under others' launchers. Those
# have a Python of their own: torch alone is ten times as large as all the rest. PyPI's torch for
# Linux brings CUDA along; to save 3 GB, name one without, as in
# FOREIGN_TORCH='torch --index-url https://download.pytorch.org/whl/cpu'. Slurm's tests run where
# Debian's slurmctld, slurmd and slurm-client are, as root.
FOREIGN := build/foreign
TORCH ?= torch==2.13.0
FOREIGN_TORCH ?= $(TORCH)
FOREIGN_PIP := $(FOREIGN)/bin/python -m pip --disable-pip-version-check -qq

$(FOREIGN)/ready: build/packages.inputs build/python.inputs
	@$(STEP) 'make $(FOREIGN)' $(PYTHON) -m venv --clear $(FOREIGN)
	@$(FOREIGN_PIP) install 'pip>=25.1'
	@$(STEP) 'install packages: foreign' $(FOREIGN_PIP) install --group foreign
	@$(STEP) 'install packages: torch' $(FOREIGN_PIP) install $(foreach word,$(FOREIGN_TORCH),'$(word)')
	@touch $@

# MPICH's mpirun has the name of Open MPI's, so it has a place of its own.
build/mpich/ready: build/packages.inputs build/python.inputs
	@$(STEP) 'make build/mpich' $(PYTHON) -m venv --clear build/mpich
	@build/mpich/bin/python -m pip --disable-pip-version-check -qq install 'pip>=25.1'
	@$(STEP) 'install packages: mpich' build/mpich/bin/python -m pip \
	  --disable-pip-version-check -qq install --group mpich
	@touch $@

$(FOREIGN)/installed: $(VENV)/installed $(FOREIGN)/ready
	@$(STEP) 'install the wheel: foreign' $(FOREIGN_PIP) install --force-reinstall \
	  dist/standfast-*.whl
	@touch $@

# What runs inside of other libraries: the same Python has those. CI runs it after `make test`.
# Arrays of all libraries are in one process there.
ARRAYS := tests/test_array_table.py tests/test_arrays.py tests/test_group_arrays.py
INTEGRATIONS := tests/torch tests/mlx tests/ray/test_collective.py tests/ray/test_train.py
test-integrations: $(VENV)/group-test $(VENV)/standfast-mlx $(VENV)/installed $(FOREIGN)/installed
	@echo '== pytest: integrations'
	@env -u PYTHONPATH EXPECT_INSTALLED=1 FOREIGN_PYTHON=$(CURDIR)/$(FOREIGN)/bin/python \
	  $(PYTEST) $(INTEGRATIONS) $(PYTEST_ARGS)
	@echo '== pytest: arrays of torch, JAX and MLX'
	@env -u PYTHONPATH EXPECT_INSTALLED=1 $(FOREIGN)/bin/python -m pytest -p no:cacheprovider $(ARRAYS)

# The types of all that is public, as seen where all that we build on is installed.
types: $(VENV)/group-types $(FOREIGN)/installed
	@$(STEP) 'types' env -u PYTHONPATH PATH="$(CURDIR)/$(FOREIGN)/bin:$$PATH" .ci/types $(BIN)/pyright

# PyTorch's own tests of a backend, those for CPUs, as they come with torch: 20 minutes. SUITE names
# cases, such as SUITE='test_all_reduce_sum test_barrier'; without it, all that Gloo passes.
SUITE ?=
test-torch-suite: $(FOREIGN)/installed
	env -u PYTHONPATH $(FOREIGN)/bin/python -m tests.torch.suite standfast $(SUITE)

test-foreign: $(VENV)/group-test $(FOREIGN)/installed build/mpich/ready
	@env -u PYTHONPATH EXPECT_INSTALLED=1 FOREIGN_PYTHON=$(CURDIR)/$(FOREIGN)/bin/python \
	  MPICH_MPIRUN=$(CURDIR)/build/mpich/bin/mpirun \
	  $(BIN)/pytest -p no:cacheprovider tests/foreign tests/started $(PYTEST_ARGS)

# The pages of docs/ as HTML, in build/docs/html; a warning is an error. `make pytest` runs their code.
.PHONY: docs
PYTHON_FILES += docs/conf.py docs/_ext docs/picture
docs: $(VENV)/group-docs $(VENV)/group-test $(VENV)/mlx $(VENV)/installed
	@$(STEP) 'docs' $(BIN)/python -m sphinx -W --keep-going -n -q -b html docs build/docs/html

# The tests that kill ranks, REPEAT times; prints how long survivors took to know.
REPEAT ?= 200
death-repeat: $(VENV)/group-test $(VENV)/installed
	$(BIN)/python tests/death/repeat.py $(REPEAT)

# Random kills of anything that belongs to a job; each seed has its own. Linux, as root.
KILLS ?= 1000
SEED ?=
chaos: $(VENV)/group-test $(VENV)/installed
	env -u PYTHONPATH $(BIN)/python tests/chaos/storm.py --kills $(KILLS) $(SEED:%=--seed %)

# Beside the libraries that .venv has; bench/README.md says how others come in.
bench: $(VENV)/group-test $(VENV)/installed
	$(BIN)/standfast bench --compare openmpi,mpich,gloo,mlx $(BENCH_ARGS)

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f src/standfast/_core*.so src/standfast/_librdma.so src/standfast/_sentinel
	rm -f mlx/src/standfast_mlx/_group*.so mlx/src/standfast_mlx/_built.py
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
