# Needs git, make and python3 >= 3.11. Everything else goes into .venv, which is rebuilt only as far as
# pyproject.toml or constraints-cpu.txt changed.
PYTHON ?= python3
JOBS ?= 2
BENCH ?= exact_mlp
BIN := .venv/bin

.PHONY: help demo test test-all test-long faults check docs pictures bench
.DELETE_ON_ERROR:

help:
	@echo 'make demo      train on 1,797 real scanned digits, three seeds, and print the mean test accuracy'
	@echo 'make test      run the test suite without its slow tests'
	@echo 'make test-all  run the slow tests too, as every change must'
	@echo 'make test-long run all tests, with whole studies and every case of every table'
	@echo 'make faults    kill, damage and starve runs, 10 to 15 minutes; the table of docs/reliability.md'
	@echo 'make check     ruff, pyright and the import-direction test'
	@echo 'make docs      build the documentation into docs/_build/html'
	@echo 'make pictures  draw the pictures of the documentation again'
	@echo 'make bench     time the exact MLP kernel against its peers; BENCH=NAME: another one of python -m benchmarks --list'

# --resume continues an interrupted demo, and prints the result of a finished one again. One thread: for so small a model
# a second thread gains nothing on a quiet machine and costs much on a busy one.
demo: .venv/.stamp-demo
	OMP_NUM_THREADS=1 $(BIN)/fredholm train digits --seeds 0 1 2 --resume
	@echo 'the three runs lie in runs/digits; metrics.jsonl in each records its course'

# One thread per worker: tensors are small, so two processes are faster than two threads. Workers keep neighbouring tests,
# which share the fixtures of a module. Processes that tests start find bytecode, even if the shell forbids writing it.
test: PYTEST_MARKS := -m "not slow"
test-all: PYTEST_MARKS := -m "not long"
test-long: PYTEST_MARKS := --every-case
test test-all test-long: export PYTHONDONTWRITEBYTECODE :=
test test-all test-long: .venv/.stamp-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_MARKS) $(PYTEST_ARGS)

# Two drivers side by side, one thread each.
faults: .venv/.stamp-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.faults $(FAULTS_ARGS)

check: .venv/.stamp-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q tests/test_imports.py

docs: .venv/.stamp-docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo 'open docs/_build/html/index.html'

pictures: .venv/.stamp-docs
	$(BIN)/python docs/pictures/draw.py
	$(BIN)/python docs/pictures/draw_fields.py
	$(BIN)/python -m benchmarks.scaling benchmarks/results/large_domains.json docs/pictures/scaling.png
	$(BIN)/python -m benchmarks.roofline_picture benchmarks/results/roofline.json docs/pictures/roofline.png
	$(BIN)/python -m benchmarks.roofline_picture benchmarks/results/h100.json docs/pictures/roofline_h100.png
	$(BIN)/python recipes/aether_against_gpt2.py --draw docs/studies/aether.json --out docs/pictures

bench: .venv/.stamp-dev
	$(BIN)/python -m benchmarks $(BENCH) $(BENCH_ARGS)

.venv/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than Python 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments; install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

# A machine with an NVIDIA GPU takes whatever torch its pip offers; every other one the tested version.
install = \
	if nvidia-smi -L >/dev/null 2>&1; then constraint=; else constraint='--constraint constraints-cpu.txt'; fi; \
	echo "installing fredholm[$(1)] into .venv"; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$constraint --editable '.[$(1)]' && touch $@

.venv/.stamp-demo: .venv/.stamp-venv pyproject.toml constraints-cpu.txt
	@$(call install,train$(comma)data$(comma)augment$(comma)report)

.venv/.stamp-dev: .venv/.stamp-venv pyproject.toml constraints-cpu.txt
	@$(call install,train$(comma)data$(comma)arrow$(comma)audio$(comma)augment$(comma)peers$(comma)hub$(comma)quantise$(comma)viz$(comma)report$(comma)export$(comma)triton$(comma)test$(comma)lint$(comma)docs)
	@# timm requires torchvision, which has no CPU build on some platforms
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps timm==1.0.31 \
	  || echo 'timm cannot be installed; tests that compare with it are skipped'

.venv/.stamp-docs: .venv/.stamp-venv pyproject.toml constraints-cpu.txt
	@$(call install,train$(comma)data$(comma)augment$(comma)viz$(comma)report$(comma)docs)

comma := ,
