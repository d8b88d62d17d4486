# Needs Python 3.11 or newer and nothing else: tools and environments go to the user's cache folder.

PYTHON ?= python3
XDG_CACHE_HOME ?= $(HOME)/.cache
TOOLS := $(XDG_CACHE_HOME)/specvllm-compat/tools
NOX := PATH="$(TOOLS)/bin:$$PATH" $(TOOLS)/bin/nox --error-on-missing-interpreters

# Without bytecode each `import vllm` takes most of a minute.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test lint matrix matrix-all benchmarks
help:
	@echo "make demo        a tiny model through the newest vLLM, in a minute"
	@echo "make test        lint, everything without an engine, real engines of the newest vLLM"
	@echo "make matrix      real engines of the eras' first and last vLLM releases"
	@echo "make matrix-all  real engines of every vLLM release; rewrites docs/matrix.md"
	@echo "make benchmarks  what importing, a wrapped call and starting up cost"

demo: $(TOOLS)/complete
	@$(NOX) --session demo

test: $(TOOLS)/complete
	@$(NOX) --session lint ring0 newest

lint: $(TOOLS)/complete
	@$(NOX) --session lint

matrix: $(TOOLS)/complete
	@$(NOX) --session matrix

matrix-all: $(TOOLS)/complete
	@$(NOX) --session matrix_all

benchmarks: $(TOOLS)/complete
	@$(NOX) --session benchmarks

$(TOOLS)/complete:
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 11), 'Python 3.11 or newer is needed'"
	$(PYTHON) -m venv --clear $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet nox uv
	touch $@
