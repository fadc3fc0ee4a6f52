# Every target works alone on a fresh machine: the first one sets everything up. `make help` lists those
# with "##" behind them, `make campaign` those with "#:".
CAMPAIGNS := architectures audit chaos compliance corrupt draws ends examples fuzz kills matrix mutants neon oldest ray repeated scripts servers soak studies
.PHONY: help demo test lint docs bench figures asan wheel campaign campaigns format stubs api types $(CAMPAIGNS) \
    gpu gpu-rehearsal gpu-kit clean ready ready-to-test
.DELETE_ON_ERROR:
# Without bytecode each of the processes that tests start would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The compiler and the libraries, checked once; .ci/system-packages installs what is missing.
SYSTEM := $(VENV)/system.stamp
# What building needs, what running needs, what tests and checks need besides; and the extension.
BUILD_TOOLS := $(VENV)/build-tools.stamp
INSTALLED := $(VENV)/installed.stamp
TEST_INSTALLED := $(VENV)/test-installed.stamp
DOCS_INSTALLED := $(VENV)/docs-installed.stamp
EXTENSION := $(VENV)/extension.stamp
# No bytecode by pip: Python writes it, for the few modules that it imports.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile
SOURCES := $(wildcard csrc/*/*.cpp csrc/*/*.hpp csrc/*/*.cu)
# How it is built.
BUILD_FILES := $(wildcard csrc/CMakeLists.txt csrc/cmake/*.cmake csrc/device/*.py) setup.py
# Shipped as it is: built where DALI is, by `fusionloader build-dali`.
SHIPPED_SOURCES := fusionloader/transforms/executors/dali/memory/memory_resource.cpp
# Written in C++ and never shipped.
TEST_SOURCES := $(wildcard tests/*/*.cpp tests/*/*.hpp tests/fuzz/targets/*)
ASAN := build/asan
# The tests that call the native code directly.
NATIVE_TESTS := $(wildcard tests/csrc tests/cuda tests/gpu_memory tests/queue tests/ops tests/device \
    tests/fuzz)
# All their cases, without those that compile for all architectures or mutate the code.
NATIVE_CASES := (matrix or not matrix) and not architectures and not mutants
# Random input is tried for so long, which is more than as one test among many.
ASAN_FUZZ_SECONDS ?= 60
OLDEST := build/oldest
OLDEST_TESTS := executors faults iterators loader places pool queue ranks resume samplers shm \
    statistics streams validation workers
FUZZ := build/fuzz
FUZZ_SECONDS ?= 60
# Window, scan and script run the JPEG decoder; those but the first without libjpeg, which the memory
# sanitizer would have to know.
FUZZERS := $(FUZZ)/window-address $(FUZZ)/scan-address $(FUZZ)/scan-memory $(FUZZ)/script-address \
    $(FUZZ)/script-memory $(FUZZ)/png-address $(FUZZ)/webp-address
FUZZ_SOURCES := $(wildcard csrc/jpeg/*.cpp)
FUZZ_FLAGS := -std=c++17 -O1 -g -ffp-contract=off -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-unknown-warning-option \
    -Icsrc -Itests/fuzz/targets
WITH_LIBJPEG := csrc/jpeg/describe_scan.cpp csrc/jpeg/region_decoder.cpp
PYTEST_FLAGS ?= -q
# Tests wait for processes and compilers a good part of their time: one more at once than cores,
# and no more than eight, which take a GB of memory each.
TEST_PROCESSES ?= $(shell count=$$(($$(nproc) + 1)); echo $$((count < 8 ? count : 8)))
# Of the campaigns: processes killed at random, processes that end, damaged files, and draws of another
# library compared with ours.
KILLS ?= 150
ENDS ?= 200
CORRUPT_FILES ?= 10000
DRAWS ?= 25000
LOADERS ?= 10000
SOAK_SECONDS ?= 7200
CHAOS_SECONDS ?= 600
TIMES ?= 10
GPU_RESULTS ?= benchmarks/results/gpu
RUNS ?= a b c d

help:
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1 \2/p' Makefile | awk '{printf "make %-9s", $$1; $$1 = ""; print}'

demo: ready  ## train on photo-like images with both loaders, and compare
	$(BIN)/python -m fusionloader demo $(ARGS)

# The report is opened in a browser. Where none can be installed, that test says so and is skipped.
test: ready-to-test  ## all tests; PYTEST_FLAGS="-q tests/plan" for a folder's
	-.ci/system-packages $(PYTHON) chromium
	$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal $(PYTEST_FLAGS)

# A failure ends it. Each second time two busy loops run beside it, as long as this shell does.
repeated: ready-to-test  #: the suite ten times in a row, half of them on a busy machine; TIMES=10
	for time in $$(seq $(TIMES)); do \
	    busy=; \
	    if [ $$((time % 2)) = 0 ]; then \
	        for loop in 1 2; do (while kill -0 $$$$; do :; done) & busy="$$busy $$!"; done; \
	    fi; \
	    $(MAKE) --no-print-directory test; \
	    status=$$?; \
	    [ -z "$$busy" ] || kill $$busy; \
	    [ $$status = 0 ] || exit $$status; \
	done

# What the tests do shortly, for long. FUSIONLOADER_SEED says where random choices begin.
campaign: unknown = $(filter-out $(CAMPAIGNS),$(NAME))
campaign:  ## longer checks by NAME, as NAME=chaos; without one, a list of them
	$(if $(unknown),$(error no campaign is called $(unknown): `make campaign` lists them))
	@$(if $(NAME),$(MAKE) --no-print-directory $(NAME),sed -nE 's/^([a-z-]+):.*#: (.*)/\1 \2/p' Makefile | \
	    sort | awk '{printf "make campaign NAME=%-13s", $$1; $$1 = ""; print}')

# A JSON line for each is added to benchmarks/results/campaigns.ndjson, and docs/how/campaigns.md written.
campaigns: ready-to-test  ## all of them, for two days; ONLY="chaos soak" for some
	$(BIN)/python -m benchmarks.campaigns $(ONLY)

kills: ready-to-test  #: processes killed at random, 150 of each kind of epochs; KILLS=150
	FUSIONLOADER_KILLS=$(KILLS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m kills

# Expected failures are those in which torch's own code aborts.
ends: ready-to-test  #: processes that end while daemonic threads make, use and drop loaders; ENDS=200
	FUSIONLOADER_ENDS=$(ENDS) $(BIN)/python -m pytest $(PYTEST_FLAGS) tests/places/test_threads_and_pools.py \
	    -k daemonic_threads

# CHAOS_FLAGS may say --seed or --kind.
chaos: ready-to-test  #: real epochs of every part under all kinds of faults; CHAOS_SECONDS=600
	cd tests && ../$(BIN)/python -m chaos --seconds $(CHAOS_SECONDS) --json ../build/chaos.json \
	    $(CHAOS_FLAGS)

# Says how many files of each kind had Pillow's pixels, and how many its error.
corrupt: ready-to-test  #: damaged files of six formats, compared with Pillow; CORRUPT_FILES=10000
	FUSIONLOADER_CORRUPT_FILES=$(CORRUPT_FILES) $(BIN)/python -m pytest $(PYTEST_FLAGS) -s -m corrupt \
	    tests/faults/test_corrupt_files.py

soak: ready-to-test  #: whether memory grows in hours of epochs; SOAK_SECONDS=7200, LOADERS=10000
	PYTHONPATH=tests $(BIN)/python -W ignore -m soak --seconds $(SOAK_SECONDS) --json build/soak.json
	FUSIONLOADER_LOADERS=$(LOADERS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -s --timeout=0 tests/soak

draws: ready-to-test  #: what is drawn, compared with torchvision and timm; DRAWS=25000
	FUSIONLOADER_DRAWS=$(DRAWS) $(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'matrix or not matrix' \
	    tests/plan/test_distributions.py tests/plan/test_timm_distributions.py

mutants: ready-to-test  #: whether the tests of lent memory notice mistakes in the native code
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m mutants tests/gpu_memory/test_mutants.py

architectures: ready-to-test  #: the fused kernel, compiled for all architectures that NVRTC knows
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m architectures tests/device/test_kernel.py

studies: ready-to-test  #: whether all studies in benchmarks/ still run
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m studies tests/cli/test_commands.py tests/cli/test_gpu_runs.py \
	    tests/compat/test_compliance.py tests/test_same_training.py tests/test_imread.py tests/test_gpu_kit.py

# Ends of processes and ways to start them, damage to caches, vector kernels, examples of properties.
matrix: ready-to-test  #: all cases of what the suite tries in part
	FUSIONLOADER_THOROUGH=1 $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal \
	    $(PYTEST_FLAGS) -m 'matrix or properties'

ray: ready-to-test  #: remote workers that Ray starts, on real clusters
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'ray or not ray' tests/remote/ray

# What other packages are needed for is skipped. NumPy is one that this torch knows; its CUDA is 12.
oldest: ready-to-test  #: loaders on the oldest torch that is supported
	test -x $(OLDEST)/bin/python || $(BIN)/python -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --no-compile 'torch==2.6.0' torchvision pytest \
	    'numpy<2.3' pytest-timeout pytest-xdist hypothesis psutil nvidia-dali-cuda120 posix_ipc tqdm aiohttp s3fs \
	    'moto[s3]' flask flask-cors
	PYTHONPATH=. $(OLDEST)/bin/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=worksteal \
	    $(PYTEST_FLAGS) $(addprefix tests/,$(OLDEST_TESTS)) -k 'not compiler_is_found_beside_torch'

# FUSIONLOADER_NOTEBOOK=examples/tour.ipynb keeps the notebook with its outputs.
examples: ready-to-test  #: all examples, and the notebook
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'examples or not examples' tests/integrations/test_examples.py \
	    tests/integrations/test_notebook.py tests/cli/test_commands.py tests/ranks/test_torchrun.py \
	    -k "example or notebook or torchrun"

# SCRIPTS is a folder with clones of github.com/pytorch/examples, pytorch/vision and
# huggingface/pytorch-image-models, and packages/ from `pip install --target SCRIPTS/packages monai
# fastai ultralytics`. What is missing is left out, and said.
scripts: ready-to-test  #: training scripts of other projects with both loaders; SCRIPTS=build/scripts
	$(BIN)/python tests/compat/other_scripts.py $(or $(SCRIPTS),build/scripts) \
	    --json build/scripts.json $(ARGS)

servers: ready-to-test  #: the examples of inference in LitServe, Ray Serve and Triton
	# Triton's server, whose test is skipped without it. Its Python code pins an older NumPy.
	-$(PIP_INSTALL) --no-deps nvidia-pytriton
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m 'servers or not servers' tests/inference/test_servers.py

bench: ready-to-test  ## speed beside other loaders; ARGS="--workload default"
	$(BIN)/python -m fusionloader bench $(ARGS)

# To measure takes hours; ARGS="collate streams" names some files.
figures: $(if $(RUN),ready-to-test)  ## which measured figures are older than the code; RUN=1 measures them anew
	$(if $(RUN),$(BIN)/python,$(PYTHON)) -m benchmarks.figures $(if $(RUN),--run) $(ARGS)

lint: ready-to-test  ## ruff, mypy, pyright, import-linter, griffe, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python .ci/stubs --check
	$(BIN)/python .ci/api --check
	$(BIN)/clang-format --dry-run --Werror $(SOURCES) $(SHIPPED_SOURCES) $(TEST_SOURCES)

# A package of which nothing can be learned, as from a mirror that has no advisories, is an error.
audit: $(INSTALLED)  #: known vulnerabilities of what the package requires
	test -x build/audit/bin/pip-audit || { $(PYTHON) -m venv build/audit && \
	    build/audit/bin/python -m pip install --quiet 'pip-audit>=2.10,<3'; }
	$(BIN)/python .ci/requirements > build/audit/requirements.txt
	@build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement build/audit/requirements.txt $(ARGS) \
	    > build/audit/said 2>&1 || { status=$$?; cat build/audit/said; \
	    ! sed -n 's/.*:\(.*\): Dependency not found on PyPI.*/fusionloader: this package index has no records of \1/p' \
	        build/audit/said | grep . || exit 77; exit $$status; }
	@cat build/audit/said

format: $(TEST_INSTALLED)  ## what ruff and clang-format change by themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES) $(SHIPPED_SOURCES) $(TEST_SOURCES)

# Wheels for this machine, for all Pythons that are found, and for 64-bit Arm; then each is installed
# without a compiler, and tried.
wheel: ready-to-test  ## wheels for all Pythons that are found, installed and tried
	.ci/system-packages $(PYTHON) ccache nasm
	rm -rf dist
	.ci/wheel dist
	-.ci/system-packages $(PYTHON) aarch64-linux-gnu-g++ qemu-aarch64-static
	if command -v aarch64-linux-gnu-g++ > /dev/null; then HOST=aarch64 .ci/wheel dist; fi
	$(BIN)/python -m pytest $(PYTEST_FLAGS) --timeout=1200 -m wheels tests/wheels

stubs: ready-to-test  ## the types of the extension, from its signatures
	$(BIN)/python .ci/stubs

# The site in build/site, where warnings are errors; and the code of the pages, which is run. To read
# it: python3 -m http.server --directory build/site
docs: export NO_MKDOCS_2_WARNING := 1
docs: ready-to-test $(DOCS_INSTALLED)  ## the site in build/site, and the code of its pages, which is run
	-.ci/system-packages $(PYTHON) chromium
	$(BIN)/python -m mkdocs build --quiet
	FUSIONLOADER_SITE=build/site $(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) \
	    --dist=worksteal $(PYTEST_FLAGS) -m docs tests/pages

# ARGS may be `--against REF`.
api: $(TEST_INSTALLED)  ## record the public API, and find what breaks programs since the last release
	$(BIN)/python .ci/api $(ARGS)

types: $(TEST_INSTALLED)  ## whether each public name has complete types
	$(BIN)/python .ci/types

# A copy of the package with an instrumented extension, and the tests of csrc/ run against it.
# The sanitizer's library has to be loaded before Python; Python itself leaks by design.
# What it says goes past Python, so that pytest must not hold it back.
asan: $(TEST_INSTALLED)  ## the tests of csrc/ with the address and undefined sanitizers
	mkdir -p $(ASAN)
	cp -R fusionloader $(ASAN)
	$(BIN)/python setup.py build_ext --build-temp build/asan-objects --build-lib $(ASAN) \
	    -DFUSIONLOADER_SANITIZE=ON
	FUSIONLOADER_FUZZ_SECONDS=$(ASAN_FUZZ_SECONDS) FUSIONLOADER_FUZZ_LOG=build/fuzz-case \
	    .ci/with-sanitizer $(ASAN) $(BIN)/python -m pytest $(PYTEST_FLAGS) --capture=sys -m '$(NATIVE_CASES)' \
	    $(NATIVE_TESTS)
	$(MAKE) fuzz FUZZ_SECONDS=$(ASAN_FUZZ_SECONDS)

# What it finds is left in build/fuzz.
fuzz: $(FUZZERS)  #: the decoders under libFuzzer, which needs clang; FUZZ_SECONDS=60
	$(BIN)/python tests/fuzz/seeds.py $(FUZZ)
	mkdir -p $(FUZZ)/scan
	for fuzzer in $(FUZZERS); do \
	    kind=$$(basename $$fuzzer | cut -d- -f1); \
	    case $$kind in png | webp) format=$$kind ;; *) format=jpeg ;; esac; \
	    $$fuzzer -max_total_time=$(FUZZ_SECONDS) -timeout=10 -max_len=16384 -use_value_profile=1 \
	        -dict=tests/fuzz/$$format.dict -artifact_prefix=$(FUZZ)/found- -print_final_stats=1 \
	        $(FUZZ)/$$kind $$(ls -d tests/fuzz/corpus/$$kind 2> /dev/null) || exit 1; \
	done
	@echo "nothing found by $(words $(FUZZERS)) fuzzers in $(FUZZ_SECONDS) s each"

$(FUZZ)/window-address: SANITIZE := fuzzer,address,undefined
$(FUZZ)/scan-address: SANITIZE := fuzzer,address,undefined
$(FUZZ)/scan-memory: SANITIZE := fuzzer,memory
$(FUZZ)/script-address $(FUZZ)/png-address $(FUZZ)/webp-address: SANITIZE := fuzzer,address,undefined
$(FUZZ)/script-memory: SANITIZE := fuzzer,memory
$(FUZZ)/window-address: FUZZED := tests/fuzz/targets/window_target.cpp $(FUZZ_SOURCES) -ljpeg
$(FUZZ)/scan-address $(FUZZ)/scan-memory: \
    FUZZED := tests/fuzz/targets/scan_target.cpp $(filter-out $(WITH_LIBJPEG),$(FUZZ_SOURCES))
$(FUZZ)/script-address $(FUZZ)/script-memory: \
    FUZZED := tests/fuzz/targets/script_target.cpp $(filter-out $(WITH_LIBJPEG),$(FUZZ_SOURCES))
$(FUZZ)/png-address: FUZZED := tests/fuzz/targets/png_target.cpp $(wildcard csrc/png/*.cpp) \
    $(wildcard csrc/ops/interleave*.cpp) -ldeflate
$(FUZZ)/webp-address: FUZZED := tests/fuzz/targets/webp_target.cpp $(wildcard csrc/webp/*.cpp) \
    -lwebp -lwebpdemux
$(FUZZERS): $(SYSTEM) $(SOURCES) $(wildcard tests/fuzz/targets/*)
	.ci/system-packages $(PYTHON) clang
	mkdir -p $(FUZZ)
	clang++ $(FUZZ_FLAGS) -fsanitize=$(SANITIZE) $(FUZZED) -o $@

neon: $(SYSTEM)  #: the native code for 64-bit Arm, cross-compiled and run under emulation
	-.ci/system-packages $(PYTHON) aarch64-linux-gnu-g++ qemu-aarch64-static
	.ci/neon build/neon

# On a machine with a CUDA device: what only a device can show, and its figures, after one epoch with a
# GPU worker there. RUNS may be one of them; each takes less than ten minutes. Without network, call
# benchmarks.gpu itself.
gpu: ready-to-test
	$(BIN)/python .ci/gpu-kit/check
	for run in $(RUNS); do $(BIN)/python -m benchmarks.gpu $$run --out $(GPU_RESULTS); done

# The same without a device, over DALI's CPU backend and stand-ins, in as much time; less than a
# quarter of it with REHEARSAL=brief.
gpu-rehearsal: export FUSIONLOADER_REHEARSAL := $(or $(REHEARSAL),1)
gpu-rehearsal: ready-to-test
	$(BIN)/python .ci/gpu-kit/check
	for run in $(RUNS); do $(BIN)/python -m benchmarks.gpu $$run --out build/rehearsal || exit 1; done

# What a machine with such a device lacks if it has no network: benchmarks/README.md. It takes minutes.
gpu-kit: $(SYSTEM)
	.ci/gpu-kit/pack build/gpu-kit

# SUITES has test/test_dataloader.py of PyTorch's sources, and in stateful/ the files of
# test/stateful_dataloader in github.com/pytorch/data.
compliance: ready-to-test  #: the tests of PyTorch and torchdata; SUITES=build/suites
	$(BIN)/python tests/compat/compliance.py $(or $(SUITES),build/suites) $(ARGS)

$(SYSTEM): .ci/system-packages
	.ci/system-packages $(PYTHON)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	touch $@

# pip waits for the network while the compiler has the cores, so that the two run side by side.
ready:
	@$(MAKE) --no-print-directory --jobs=2 $(INSTALLED) $(EXTENSION)

ready-to-test:
	@$(MAKE) --no-print-directory --jobs=2 $(TEST_INSTALLED) $(EXTENSION)

# The build tools go in first: the build then runs in this environment and not in one of its own.
$(BUILD_TOOLS): $(SYSTEM) pyproject.toml
	$(PIP_INSTALL) --upgrade pip 'scikit-build-core>=1.0' 'setuptools-scm>=8' 'pybind11>=3.1,<3.2' \
	    cmake ninja
	touch $@

# Without the native code, which is compiled beside this.
$(INSTALLED): $(BUILD_TOOLS)
	FUSIONLOADER_NATIVE=0 $(PIP_INSTALL) --no-build-isolation --editable .
	touch $@

$(TEST_INSTALLED): $(INSTALLED)
	FUSIONLOADER_NATIVE=0 $(PIP_INSTALL) --no-build-isolation --editable '.[test]'
	# The writer of MDS shards, with what it imports. It asks for earlier releases of numpy and
	# transformers, and works with these; its tests are skipped without it.
	-$(PIP_INSTALL) --no-deps mosaicml-streaming brotli catalogue cramjam python-snappy zstd
	touch $@

$(DOCS_INSTALLED): $(TEST_INSTALLED)
	FUSIONLOADER_NATIVE=0 $(PIP_INSTALL) --no-build-isolation --editable '.[docs]'
	touch $@

$(EXTENSION): $(BUILD_TOOLS) $(SOURCES) $(BUILD_FILES)
	$(BIN)/python setup.py build_ext --inplace
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f fusionloader/_native*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
