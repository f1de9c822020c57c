# Every target bootstraps by itself: Python 3, git and make are enough.
PY := .venv/bin/python
STAMP := .venv/.synced
DEMO_PREFIX := $(CURDIR)/.demo
TESTS ?= tests

.PHONY: install demo test test-full lint lock clean-demo

$(STAMP): pyproject.toml lib/neve/pyproject.toml lib/neve-chat/pyproject.toml lib/neve-train/pyproject.toml lock.digest tools/install.sh
	tools/install.sh
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	@MARIN_PREFIX="$(DEMO_PREFIX)" $(PY) -m experiments.sft.configs.snowball_tiny

test: $(STAMP)
	$(PY) -m pytest -q $(TESTS) -m "not full"

test-full: $(STAMP)
	$(PY) -m pytest -q $(TESTS) -m full

lint: $(STAMP)
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m pyright

lock:
	tools/install.sh lock

clean-demo:
	rm -rf "$(DEMO_PREFIX)"
