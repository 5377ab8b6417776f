# A thin front for the CMake presets. Targets that build install missing Debian packages first.

PREFIX ?= /usr/local
ARGS ?= -c 1M --kv-topk 64 --prefill window -o out/needle
FUZZ_SECONDS ?= 60
PYTHON_EXTRAS ?= test,hf,plot,quantised
jobs := $(shell nproc)
# pip takes the newest transformers that pyproject.toml allows; the lowest is tested after it. What else changes often is
# pinned by bindings/tests/constraints.txt.
lowest_transformers := $(shell sed -n 's/.*"transformers>=\([0-9.]*\),.*/\1/p' pyproject.toml)
topkv := build/release/src/cli/topkv
# A process per core, each with one thread of PyTorch's: the models of the tests are small. A process that has no tests
# left takes some of another's. Python keeps compiled code: compiling PyTorch and transformers takes longer than importing
# them, and some 20 more processes import them.
pytest := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 build/check-python/bin/pytest --numprocesses $(jobs) --dist worksteal
# Tests of topkv.hf that run whole programs, or of what does not depend on the models of transformers, run with the newest
# alone.
newest_hf_tests := distributed eval failed_calls fingerprint freeze half_precision install interrupts method models_table \
  picture_examples progress random_calls retrieval saved_texts saved_tokenizers scripts sequence_shards sparse_prefill
# With a GPU here, CUDA code is compiled for this GPU alone, which is quicker. A bundle is for all GPUs.
gpu_arch_flag := $(shell nvidia-smi -L >/dev/null 2>&1 && echo -D CMAKE_CUDA_ARCHITECTURES=native)
# Targets that run a program here leave CUDA out if there is no GPU: compiling it for all GPUs takes most of an hour.
cuda_flags := $(if $(gpu_arch_flag),-D TOPKV_CUDA=AUTO $(gpu_arch_flag),-D TOPKV_CUDA=OFF)
# Without one, checks compile it for the oldest, to see that it compiles.
checked_architectures := $(if $(gpu_arch_flag),native,80-real)
# And little optimised, which takes about half the time.
checked_cuda_flags := $(if $(gpu_arch_flag),,-Xcicc -O1 -Xptxas -O1)
# Nor are those started that need one, each to say that it is skipped, one after the other.
checked_tests := $(if $(gpu_arch_flag),,--exclude-regex '^gpu\.')

.PHONY: help needle check check-quick check-gpu check-python check-real check-smollm2 build install bundle wheel bench asan tsan fuzz docs setup clean

help:
	@echo 'make needle    build, then find needles in a million tokens on this machine (ARGS=… replaces the flags)'
	@echo 'make check     build the dev preset and run all tests (without a GPU, those that need none)'
	@echo 'make check-quick   what takes minutes: every room without CUDA and without the tests labelled slow'
	@echo 'make check-gpu the tests that need a GPU; reported as skipped where there is none'
	@echo 'make check-python  install the Python package into a fresh environment and run its tests,'
	@echo '               those of topkv.hf with the newest and the lowest transformers'
	@echo '               (PYTHON_EXTRAS=test leaves PyTorch, transformers and matplotlib out; test,ray tests Ray Serve)'
	@echo 'make check-real    run the commands over two GGUF files from PyPI, and compare with transformers'
	@echo 'make check-smollm2 the smaller of the two, compared with answers of transformers that are stored'
	@echo 'make build     build the library and the command, $(topkv)'
	@echo 'make install   install them under PREFIX, $(PREFIX)'
	@echo 'make bundle    pack them, with all libraries, into out/topkv-*.tar.gz for other machines'
	@echo '               (BUNDLE_ARGS=--without-cuda-libraries leaves cuBLAS out: 0.6 GB less)'
	@echo 'make wheel     pack the Python package, with all libraries but cuBLAS, into out/topkv-*.whl'
	@echo '               (WHEEL_ARGS="--without-cuda python3.10 python3.13": for these interpreters, without CUDA)'
	@echo 'make bench     build and run the benchmarks'
	@echo 'make asan      tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan      tests of threads under ThreadSanitizer'
	@echo 'make fuzz      each parser given mutated bytes for FUZZ_SECONDS, $(FUZZ_SECONDS); takes clang with libFuzzer'
	@echo 'make docs      build the documentation site, out/docs/html/index.html; a broken link fails'
	@echo 'make setup     install the Debian packages that are missing'
	@echo 'make clean     delete build/ and out/'

needle: setup
	cmake --preset release $(cuda_flags)
	cmake --build --preset release --parallel $(jobs) --target topkv-cli
	$(topkv) needle -m models/needle-14m $(ARGS)

check check-quick check-python check-real check-smollm2: export CMAKE_CXX_COMPILER_LAUNCHER = ccache
check check-quick check-python check-real check-smollm2: export CMAKE_CUDA_COMPILER_LAUNCHER = ccache
check check-quick check-python check-real check-smollm2: export CCACHE_DIR = $(CURDIR)/build/ccache
check check-quick check-python check-real check-smollm2: export CCACHE_NOHASHDIR = 1
# Paths below this folder count from where the compiler runs, so that files that unity builds make are found again.
check check-quick check-python check-real check-smollm2: export CCACHE_BASEDIR = $(CURDIR)
# By one name: pip's builds would call the compiler as Python's own build did, which the cache takes for another.
ifeq ($(origin CXX),default)
CXX := c++
endif
check check-quick check-python check-real check-smollm2: export CXX := $(CXX)

check: preset := dev
check asan: grammars := -D TOPKV_GRAMMARS=ON
asan: preset := asan
tsan: preset := tsan
check check-real check-smollm2: architectures := -D "CMAKE_CUDA_ARCHITECTURES=$(checked_architectures)" -D "CMAKE_CUDA_FLAGS=$(checked_cuda_flags)"
check: tests := $(checked_tests)
check asan tsan: setup
	cmake --preset $(preset) -D TOPKV_JINJA=ON $(grammars) $(architectures)
	cmake --build --preset $(preset) --parallel $(jobs)
	ctest --preset $(preset) --parallel $(jobs) $(tests)

check-quick: setup
	cmake --preset quick
	cmake --build --preset quick --parallel $(jobs)
	ctest --preset quick --parallel $(jobs)

fuzz: setup
	cmake --preset fuzz
	cmake --build --preset fuzz --parallel $(jobs)
	bash tools/fuzz.sh build/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

check-gpu: setup
	cmake --preset dev -D TOPKV_CUDA=ON $(gpu_arch_flag)
	cmake --build --preset dev --parallel $(jobs)
	ctest --preset dev --label-regex gpu

# PyPI may answer late, or once in a while not.
check-python check-real check-smollm2 docs: export PIP_RETRIES = 10
check-python check-real check-smollm2 docs: export PIP_DEFAULT_TIMEOUT = 60

# Compiled as the dev preset does, so that the library comes out of the cache behind `make check`.
check-python: setup
	rm -rf build/check-python build/check-python-build
	python3 -m venv build/check-python
	build/check-python/bin/pip install --quiet --no-compile --constraint bindings/tests/constraints.txt '.[$(PYTHON_EXTRAS)]' \
	  --config-settings cmake.define.CMAKE_CUDA_ARCHITECTURES='$(checked_architectures)' \
	  --config-settings cmake.define.CMAKE_CUDA_FLAGS='$(checked_cuda_flags)' \
	  --config-settings cmake.build-type=RelWithDebInfo --config-settings cmake.define.TOPKV_WERROR=ON \
	  --config-settings cmake.define.CMAKE_UNITY_BUILD=ON --config-settings build-dir=build/check-python-build \
	  --config-settings cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO='-O2 -g1'
	$(pytest)
ifneq ($(findstring hf,$(PYTHON_EXTRAS)),)
	build/check-python/bin/pip install --quiet --no-compile --constraint bindings/tests/constraints.txt \
	  'transformers==$(lowest_transformers).*'
	$(pytest) bindings/tests/hf $(foreach file,$(newest_hf_tests),--ignore=bindings/tests/hf/test_$(file).py)
endif

real := build/real
check_real := tests/real/check.py build/dev/src/cli/topkv $(real)

check-smollm2: setup
	cmake --preset dev -D TOPKV_JINJA=ON -D TOPKV_GRAMMARS=ON $(architectures)
	cmake --build --preset dev --parallel $(jobs) --target topkv-cli
	$(check_real) smollm2 tests/real/smollm2.json

check-real: check-smollm2
	python3 -m venv --clear $(real)/venv
	$(real)/venv/bin/pip install --quiet --no-compile --requirement tests/real/requirements.txt
	for model in smollm2 gemma3; do \
	  $(real)/venv/bin/python tests/real/reference.py $$(tests/real/check.py --fetch $(real) $$model) $(real)/$$model.json && \
	  $(check_real) $$model $(real)/$$model.json || exit 1; done

build: setup
	cmake --preset release $(cuda_flags)
	cmake --build --preset release --parallel $(jobs)

install: build
	cmake --install build/release --prefix $(PREFIX)

bundle: setup
	cmake --preset release -D TOPKV_CUDA=AUTO -U CMAKE_CUDA_ARCHITECTURES
	cmake --build --preset release --parallel $(jobs)
	bash tools/bundle.sh $(BUNDLE_ARGS)

wheel: setup
	bash tools/wheel.sh $(WHEEL_ARGS)

bench: setup
	cmake --preset release -D TOPKV_BUILD_BENCH=ON $(cuda_flags)
	cmake --build --preset release --parallel $(jobs)
	for benchmark in build/release/bench/*_bench; do $$benchmark || exit 1; done

docs: setup build/docs/venv/installed
	build/docs/venv/bin/python docs/results.py --check
	cd docs && ../build/docs/venv/bin/python -m doctest prose.py check_language.py
	build/docs/venv/bin/python docs/check_language.py
	doxygen docs/Doxyfile
	build/docs/venv/bin/sphinx-build -W --keep-going -q -b html -d build/docs/doctrees docs out/docs/html
	build/docs/venv/bin/python docs/check_names.py build/docs/doxygen/xml out/docs/html/objects.inv
	build/docs/venv/bin/python docs/check_programs.py docs/*.md docs/*/*.md

build/docs/venv/installed: docs/requirements.txt
	python3 -m venv --clear build/docs/venv
	build/docs/venv/bin/pip install --quiet --requirement docs/requirements.txt
	touch $@

setup:
	@bash tools/setup.sh

clean:
	rm -rf build out
