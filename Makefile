# make demo     train fedproto, fedavg and local on digits and compare them (under a minute after set-up)
# make test     the tests, without the slow ones (under four minutes)
# make check    what CI runs: lint, types, tests, then the slow tests
# make setup    only make .venv ready; the others call it
# make format   put the code into its standard form

export OMP_NUM_THREADS = 1
BIN = .venv/bin
DEMO = runs/demo

.PHONY: demo test check lint slow setup format help
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup:
	@sh scripts/setup.sh

demo: setup
	@rm -rf $(DEMO)
	@for method in fedproto fedavg local; do \
	  $(BIN)/protofed run recipes/digits-n3.toml --set method.name=$$method --out $(DEMO)/$$method || exit 1; echo; \
	done
	@$(BIN)/protofed compare $(DEMO)/fedproto $(DEMO)/fedavg $(DEMO)/local

test: setup
	@$(BIN)/python -m pytest -m "not slow"

lint: setup
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

slow: setup
	@$(BIN)/python -m pytest -m slow

check: setup
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory slow

format: setup
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
