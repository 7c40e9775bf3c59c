# Each target is one script of scripts/; CI runs the same ones.

INSTALLED := .venv/.installed
JAR := src/gridflow/tfrecord/jars/gridflow-tfrecord.jar
BENCH_ARGS ?= --quick

.DEFAULT_GOAL := help
.PHONY: help setup jar demo test check integration bench fuzz clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(INSTALLED) $(JAR) ## Make .venv and install all that development needs (PYTHON=... chooses the interpreter)

$(INSTALLED): pyproject.toml constraints.txt CMakeLists.txt scripts/setup $(shell find cpp -type f)
	@scripts/setup $@

jar: $(JAR) ## Build the jar that gives Spark and Hadoop the TFRecord formats

$(JAR): $(INSTALLED) scripts/build-jar $(shell find java -type f)
	@scripts/build-jar

demo: $(INSTALLED) ## Train the digits example on two workers of this machine
	@scripts/demo

test: setup ## Check, then run every test that needs no foreign server
	@scripts/check
	@scripts/test

check: setup ## Lint, formatting, types and import direction
	@scripts/check

integration: setup ## Start the real systems and run the tests against them
	@scripts/integration

bench: setup ## Measure Gridflow against its peers (BENCH_ARGS=--quick)
	@scripts/bench $(BENCH_ARGS)

FUZZ_SECONDS ?= 300

fuzz: ## Feed damaged files to the TFRecord codec under sanitizers (FUZZ_SECONDS=300)
	@scripts/fuzz $(FUZZ_SECONDS)

clean: ## Remove .venv and all that was built
	@scripts/clean
