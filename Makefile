# Every target builds what it needs the first time; after that this takes seconds.
#   make run ARGS="--listen 127.0.0.1:9093"     make test ARGS="tests/unit -k records"     make demo ARGS="--rows 20000"
# The virtual environment is .venv. If python3 is a plain build, .venv gets an optimised CPython of its minor version where there
# is one (docs/decisions/0056). PYTHON=... names the Python to build it with.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
MINUTES ?= 5
COUNT ?= 100
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable
DAEMON := broker protocol replication storage
SOURCES := barnabas $(DAEMON) tests
# Three processes on two cores, because many tests wait; the tests of one file stay together, and so do their fixtures.
# The tests of `make test` (tests/conftest.py explains the marks).
FAST := smoke or not (long or needs_kafka)
PYTEST := $(BIN)/python -m pytest --verbose -rsfE --durations 10 --numprocesses 3 --dist loadfile --no-loadscope-reorder --ignore tests/house

# Daemons that tests and benchmarks start would compile their sources each time.
unexport PYTHONDONTWRITEBYTECODE

# What mypyc built for the Python of .venv (hatch_build.py).
COMPILED_WHEEL := HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps
LIBRARIES = build/mypyc/$(shell $(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')/lib
COMPILED_TESTS := tests/unit tests/property tests/simulation

SIMULATED = $(if $(SECONDS),--seconds $(SECONDS)) $(if $(HISTORIES),--histories $(HISTORIES)) $(if $(SEED),--seed $(SEED))

.PHONY: help run demo test test-all test-rest test-commitlog goldens fuzz kill damage conformance exactly-once kill-pipeline cluster-faults spark-client sim sim-commitlog sim-fulldisks sim-coordinators sim-quorum sim-cluster compare-groups compare-decisions bench check audit fmt setup kafka-jars man wheel wheel-compiled image deb compile pure test-compiled clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 22

run: .venv/.run ## start the broker on 127.0.0.1:9092, in the foreground
	@exec $(BIN)/barnabas serve $(ARGS)

demo: .venv/.demo ## 336,776 real flights through the broker, Spark and a consumer group, figures checked
	@exec $(BIN)/barnabas pipeline demo --output build/demo $(ARGS)

test: .venv/.test kafka-jars ## the tests of a change, at most 6 minutes; SEED=... chooses other random cases
	@SEED=$${SEED:-1} exec $(PYTEST) -m "$(FAST)" $(ARGS)

test-all: .venv/.test kafka-jars ## all tests, long ones and comparisons with a live Apache Kafka included; ARGS="--budget-s 600" stops in time
	@exec $(PYTEST) $(ARGS)

test-rest: .venv/.test kafka-jars ## what make test leaves out
	@exec $(PYTEST) -m "not ($(FAST))" $(ARGS)

test-commitlog: .venv/.test kafka-jars ## tests of brokers and clients with the commit log as default engine; ARGS="--budget-s 600" stops in time
	@STORAGE_ENGINE=commitlog exec $(PYTEST) tests/process tests/cli tests/conformance tests/exactly_once $(ARGS)

goldens: .venv/.test kafka-jars ## record Apache Kafka's answers in tests/goldens
	@RECORD_GOLDENS=1 exec $(BIN)/python -m pytest -q -m golden $(ARGS)

fuzz: .venv/.test ## malicious peers on all kinds of listeners beside working clients for MINUTES=5; SEED=... repeats a run
	@exec $(BIN)/python -m tests.process.fuzzing_peer --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

kill: .venv/.test ## SIGKILL under load, COUNT=100 times; SEED=... repeats a run
	@exec $(BIN)/python -m tests.process.killing --count $(COUNT) $(if $(SEED),--seed $(SEED))

damage: .venv/.test ## random damage to a stopped node, COUNT=100 times; SEED=... repeats a run
	@exec $(BIN)/python -m tests.process.damaging --count $(COUNT) $(if $(SEED),--seed $(SEED))

exactly-once: .venv/.test kafka-jars ## Kafka Streams and a consume-transform-produce loop, COUNT=100 kills each; SEED=... repeats a run
	@exec $(BIN)/python -m tests.exactly_once --count $(COUNT) $(if $(SEED),--seed $(SEED)) $(ARGS)

kill-pipeline: .venv/.test kafka-jars ## SIGKILL for archive, replay and table, COUNT=100 times; ARGS=--cluster kills a Spark cluster; SEED=... repeats a run
	@exec $(BIN)/python -m tests.pipeline.killing --count $(COUNT) $(if $(SEED),--seed $(SEED)) $(ARGS)

cluster-faults: .venv/.test kafka-jars ## COUNT=10 faults on real nodes in network namespaces (as root); SEED=... repeats a run; ARGS=--help lists more
	@exec $(BIN)/python -m tests.faults $(if $(filter-out file,$(origin COUNT)),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) $(ARGS)

spark-client: .venv/.test kafka-jars ## Spark's Kafka source and sink against Barnabas and Apache Kafka; ARGS=--clusters uses three nodes, ARGS="WORD ..." selects scenarios
	@exec $(BIN)/python -m tests.pipeline.spark_client $(ARGS)

conformance: .venv/.test kafka-jars ## real clients of five languages run the scenarios; writes docs/compatibility.md; ARGS=--kafka runs against Apache Kafka
	@exec $(BIN)/python -m tests.conformance.suite $(ARGS)

sim: .venv/.test ## storage on a simulated disk that loses power, SECONDS=60 long or HISTORIES=...; SEED=... repeats one
	@exec $(BIN)/python -m tests.simulation $(SIMULATED)

sim-coordinators: .venv/.test ## groups and transactions that crash between any two batches, SECONDS=60 long; SEED=... repeats one
	@exec $(BIN)/python -m tests.simulation coordinators $(SIMULATED)

sim-commitlog: .venv/.test ## the same with all logs in commit logs, SECONDS=60 long; SEED=... repeats one
	@exec $(BIN)/python -m tests.simulation commitlog $(SIMULATED)

sim-fulldisks: .venv/.test ## both on disks that are full for a while, SECONDS=60 long; SEED=... repeats one
	@exec $(BIN)/python -m tests.simulation fulldisks $(SIMULATED)

sim-quorum: .venv/.test ## elections and replication of the metadata log on nodes that crash and networks that fail, SECONDS=60 long; SEED=... repeats one
	@exec $(BIN)/python -m tests.simulation quorum $(SIMULATED)

sim-cluster: .venv/.test ## whole clusters on simulated disks, clocks and networks, SECONDS=60 long or HISTORIES=...; SEED=... repeats one
	@exec $(BIN)/python -m tests.simulation cluster $(SIMULATED)

compare-groups: .venv/.test kafka-jars ## random histories of groups, compared step by step with Apache Kafka; ARGS="--lives 100 --seed ..." repeats some
	@exec $(BIN)/python -m tests.scenarios.compare_with_kafka $(ARGS)

compare-decisions: .venv/.test kafka-jars ## random histories of clusters, each decision compared with Apache Kafka's controller; ARGS="--lives 100 --seed ..." repeats some
	@exec $(BIN)/python -m tests.conformance.deciding $(ARGS)

bench: .venv/.test kafka-jars ## measure one node beside Apache Kafka; ARGS=help lists what else; not a test
	@exec $(BIN)/python -m tests.benchmark $(ARGS)

check: .venv/.check ## ruff, mypy --strict, import-linter, the house rules (tests/house)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check . || { echo "make fmt formats the files named above." >&2; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest tests/house

audit: .venv-audit/bin/pip-audit ## known vulnerabilities of all pinned packages; asks an index's advisories, so it is not in make check
	@.venv-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

fmt: .venv/.check ## format the code
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

setup: .venv/.check kafka-jars ## build everything that the other targets need
	@$(BIN)/python -m tests.benchmark.builds

kafka-jars: .venv/.test ## fetch Apache Kafka's jars through Maven, for tests that compare with it
	@$(BIN)/python -m tests.support.kafka --quiet || echo "Tests that compare with Apache Kafka will be skipped." >&2

man: .venv/.run ## write the man pages of all verbs into build/man
	@$(BIN)/python -m barnabas man --all build/man

wheel: .venv/.run ## build the wheel into dist/
	@$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist .

wheel-compiled: .venv/.run ## build the wheel of this platform with the hot path compiled (docs/decisions/0057), into dist/
	@$(COMPILED_WHEEL) --wheel-dir dist .

image: .venv/.run ## build the container image without an engine (as root, with buildah and mmdebstrap), into dist/barnabas-image.tar
	@$(BIN)/python docker/build_image.py dist/barnabas-image.tar

deb: .venv/.run ## build the Debian package, as root with the tools of make image, into dist/
	@$(BIN)/python docker/build_package.py dist

compile: pure ## compile the hot path in this checkout; changed modules need make compile again, or make pure
	@$(COMPILED_WHEEL) --wheel-dir build/wheel .
	@cp --recursive $(LIBRARIES)/. .

pure: ## delete what make compile built: the sources run again
	@find $(DAEMON) -name '*.so' -delete
	@rm -f *__mypyc.*.so

test-compiled: .venv/.test ## compile a copy of the checkout in build/compiled, and run tests there: unit, property, simulation
	@rm -rf build/compiled && mkdir -p build/compiled
	@git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents --target-directory build/compiled
	@$(COMPILED_WHEEL) --wheel-dir build/wheel .
	@cp --recursive $(LIBRARIES)/. build/compiled
	@cd build/compiled && PYTHONPATH=$$PWD SEED=$${SEED:-1} exec $(PYTEST:.venv%=../../.venv%) -m "$(FAST)" $(or $(ARGS),$(COMPILED_TESTS))

clean: ## remove the virtual environment and the caches of tools
	@rm -rf .venv .venv-audit .venv-bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# --- the virtual environment, in layers; each has a stamp file ------------------------------------------------------

.venv/bin/python:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    $(if $(filter file,$(origin PYTHON)),if fast=$$("$$python" tests/benchmark/interpreters.py --for-venv); then python=$$fast; fi;) \
	    "$$python" -m venv .venv && exit 0; \
	    rm -rf .venv; \
	    echo "$$python cannot make a virtual environment: install its venv module (Debian: python3-venv), then make again." >&2; \
	    exit 1; \
	  fi; \
	done; \
	first=$(firstword $(PYTHON)); \
	found=$$("$$first" --version 2>/dev/null) || found="not there"; \
	echo "Barnabas needs Python 3.11 or newer; $$first is $$found: install one and say make PYTHON=/path/to/python3." >&2; \
	exit 1

# Apart from .venv: pip-audit has two dozen dependencies, which the broker and its tests do not need.
.venv-audit/bin/pip-audit: | .venv/bin/python
	@$(BIN)/python -m venv .venv-audit
	@.venv-audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit==2.10.1

# Each layer contains the ones before it, so its stamp makes theirs too.
LAYERS := pyproject.toml constraints.txt | .venv/bin/python

.venv/.run: $(LAYERS)
	@echo "setting up .venv" >&2
	@$(PIP) .
	@touch .venv/.run

.venv/.demo: $(LAYERS)
	@echo "setting up .venv with Spark, matplotlib and the flights" >&2
	@$(PIP) '.[demo]'
	@touch .venv/.run .venv/.demo

.venv/.test: $(LAYERS)
	@echo "setting up .venv with Spark, the flights, clients and pytest" >&2
	@$(PIP) '.[test]'
	@touch .venv/.run .venv/.demo .venv/.test

.venv/.check: $(LAYERS)
	@echo "setting up .venv with Spark, the flights, clients, pytest, ruff, mypy and import-linter" >&2
	@$(PIP) '.[test,check]'
	@touch .venv/.run .venv/.demo .venv/.test .venv/.check
