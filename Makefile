# make fit     train on the default base, or go on where the last run stopped, up to the report
# make test    what CI runs: lint, types, tests
# make lint    style and types alone
# make clean   remove the virtual environment and caches; checkpoints stay

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BASE := checkpoints/models/smollm2-135m
RUN := checkpoints/runs/smollm2-135m

.PHONY: fit test lint base install install-dev clean

fit: install base
	@if [ -f $(RUN)/checkpoints/last.ckpt ]; then \
		echo "== resuming $(RUN)"; \
		$(BIN)/lit-kvpred fit --config smollm2-135m --ckpt_path last; \
	else \
		echo "== training into $(RUN)"; \
		$(BIN)/lit-kvpred fit --config smollm2-135m; \
	fi
	@echo "== report: $(RUN)/report.html"

# Workers with one thread each: tiny tensors gain nothing from threads. Where a test does start
# threads, passive waiting keeps those of two workers from holding each other's processor.
test: lint
	@echo "== tests"
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE HF_HUB_OFFLINE=1 \
		$(BIN)/pytest -n auto --maxprocesses 4 --dist loadfile

lint: install-dev
	@echo "== style and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

base: $(BASE)/config.json
install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BASE)/config.json: | $(VENV)/.installed
	@echo "== preparing $(BASE) (downloads 93 MB)"
	@$(BIN)/lit-kvpred prepare smollm2-135m $(BASE)

# torch comes first and alone, so that its pinned version decides the build (CPU or CUDA) and no
# other requirement can choose another one.
$(VENV)/.torch: constraints.txt
	@test -x $(BIN)/python || { echo "== creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "== installing torch"
	@$(PIP) torch
	@touch $@

# setuptools first and no build isolation: the pinned version builds the package.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "== installing lit-kvpred"
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "== installing the development tools"
	@$(PIP) --no-build-isolation -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
