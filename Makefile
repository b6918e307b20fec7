# make demo       run fedproto, fedavg and local on digits and compare them (less than a minute after set-up)
# make test       run all tests except the slow ones, on all cores (less than four minutes on two)
# make other-cpu  run the numerical tests again, with the arithmetic of another processor
# make check      run what CI runs: lint, types, tests, other-cpu, then the slow tests
# make setup      create the environment .venv; the other targets do this first
# make format     format the code

export OMP_NUM_THREADS = 1
BIN = .venv/bin
DEMO = runs/demo
PYTEST = $(BIN)/python -m pytest -n auto
# The tests that compare computed numbers. `make other-cpu` runs them with the kernels that torch, oneDNN and MKL have for
# an older processor, which round differently.
NUMERICAL = baselines bounds classification core creff deeplab discrepancy draws encoders engines every_method fedavg fednh fedproto fedtgp \
  fpl geometry layout measure models mpfedcl nets objective own_nets parity personal_models pretrain protomargin prototypes \
  pixel_runs pixels privacy pull_schedule read_outs roster secure_sum theory_page training weights
OTHER_CPU = ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=COMPATIBLE

.PHONY: demo test other-cpu check lint slow setup format help
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup:
	@sh scripts/setup.sh

demo: setup
	@rm -rf $(DEMO)
	@for method in fedproto fedavg local; do \
	  $(BIN)/protofed run recipes/digits-n3.toml --set method.name=$$method --set run.trace_every=1 \
	    --out $(DEMO)/$$method || exit 1; echo; \
	done
	@$(BIN)/protofed compare $(DEMO)/fedproto $(DEMO)/fedavg $(DEMO)/local
	@$(BIN)/protofed report $(DEMO)/fedproto $(DEMO)/fedavg $(DEMO)/local --out $(DEMO)/report.html | tail -n 1

test: setup
	@$(PYTEST) -m "not slow"

other-cpu: setup
	@$(OTHER_CPU) $(PYTEST) -m "not slow" -k "not (worker or wire or planted)" $(NUMERICAL:%=tests/test_%.py)

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

slow: setup
	@$(PYTEST) -m slow

check: setup
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory other-cpu
	@sh scripts/slow_tests.sh
	@$(MAKE) --no-print-directory slow

format: setup
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
