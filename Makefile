PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup parity test check tpu-inference clean

setup: $(READY)  ## make the environment

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[tpu,dev]'
	touch $(READY)

parity: $(READY)  ## the main job: kernels beside dense MLA and float64 oracles, quick tier
	$(BIN)/dsa-verify parity

test: $(READY)  ## units, mutants, facts about the repository and the quick parity tier
	$(BIN)/python -m pytest -n auto --dist loadgroup

check: $(READY)  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

tpu-inference: $(READY)  ## tpu-inference's kernels without its serving dependencies
	$(BIN)/python -m pip install --quiet --no-deps tpu-inference==0.32.0 sympy==1.14.0 mpmath==1.3.0

clean:
	rm -rf $(VENV) build *.egg-info
