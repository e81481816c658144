# The same commands for people and for CI. Each makes what it needs first; `make setup` alone is never required.
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
PYTHON := .venv/bin/python

.PHONY: help setup setup-2.11 format check test test-unit test-fleet demo demo-ui bench soak constraints build

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

setup: ## the virtual environment .venv, with Airflow 3.3 and all tools
	@scripts/environment.sh 3.3 >/dev/null

setup-2.11: ## the second environment, with Airflow 2.11, in the user's cache
	@scripts/environment.sh 2.11 >/dev/null

format: setup ## format, and fix what can be fixed
	@scripts/format.sh

check: setup ## format, lint, types, layers
	@scripts/check.sh

test: setup setup-2.11 ## unit tests on both Airflow versions, then the core on a real fleet
	@scripts/test.sh

test-unit: setup setup-2.11 ## unit tests on both Airflow versions
	@scripts/test.sh unit

test-fleet: setup setup-2.11 ## all that takes longer: broad tests, faults, kinds, setting up, Airflow 2.11, least privilege
	@scripts/test.sh long

demo: setup ## a DAG on a real fleet and a real Airflow, followed here from start to end
	@$(PYTHON) scripts/demo.py

demo-ui: setup ## the same, left running, with its address and password
	@$(PYTHON) scripts/demo.py --ui

bench: setup ## what waiting and submitting cost, beside Airflow's own Kubernetes trigger: an hour (QUICK=1: 12)
	@$(PYTHON) -m bench $(if $(QUICK),--quick)

soak: setup ## an hour with 2,000 waiting tasks, and an API server and a Kueue that come and go
	@$(PYTHON) -m bench.soak

constraints: setup ## choose the newest versions of all packages anew
	@scripts/constraints.sh

build: setup ## wheel and sdist in dist/
	@$(PYTHON) -m build --installer uv --outdir dist
