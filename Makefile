# The two commands of the README are `make demo` and `make test`; both set up .venv first.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test test-faults fuzz package check docs bench clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Tacit needs Python 3.11: install it, or run 'make PYTHON=/path/to/python3.11'."; exit 2; }
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/tacit run digits --out runs/demo --force
	$(BIN)/tacit compare digits-pfa --vary aggregate.rule=random-effects,weighted,pfa --seeds 3 --out runs/demo-rules --force

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

TIMES ?= 1
test-faults: setup  # federations of real processes that are killed, stopped and starved; they mostly wait, so four at once
	for turn in $$(seq $(TIMES)); do \
		echo "turn $$turn of $(TIMES)"; \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults -n 4 --maxschedchunk 1 tests/federation/operate/test_faults_kills.py tests/federation || exit 1; \
	done

MESSAGES ?= 100000
fuzz: setup  # mutated messages to a site and to a server
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m redteam.fuzz site --count $(MESSAGES)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m redteam.fuzz server --count $(MESSAGES)

package: setup  # builds the wheel and the sdist, and runs the one without the repository
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m package tests/test_package.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: setup  # the site, strictly: a page that no list names, or a link that leads nowhere, ends it
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: setup
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[bench]"
	$(BIN)/python bench/dp_sgd.py
	$(BIN)/python bench/tasks.py
	$(BIN)/python bench/round.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/growth.py
	$(BIN)/python bench/projection.py
	$(BIN)/python bench/central.py
	$(BIN)/python bench/paillier.py
	$(BIN)/python bench/encrypted.py
	$(BIN)/python bench/proofs.py
	$(BIN)/python bench/report.py
	$(BIN)/python bench/flower.py
	$(BIN)/python bench/sites.py

clean:
	rm -rf $(VENV) runs build *.egg-info
