# The two commands of the README are `make demo` and `make test`; both set up .venv first.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test test-faults fuzz soak axe package check docs docs-commands notebooks bench clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Tacit needs Python 3.11: install it, or run 'make PYTHON=/path/to/python3.11'."; exit 2; }
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

demo: setup  # in about a minute and a half: a run, its audit, three rules side by side, and where to go from there
	@echo; echo "1 of 3  Twenty clients train one model. Each adds noise at home, and is charged in a ledger before anything leaves it."; echo
	$(BIN)/tacit run digits --set privacy.epsilon=6 --set audit.canaries=2000 --out runs/demo --force
	@echo; echo "2 of 3  Is that epsilon true? 2,000 known records were planted, and coins decided which of them took part. Three numbers:"
	@echo "        promised (a limit from above), shown (a limit from below, by guessing the coins), measured (an estimate of the noise as run)."; echo
	$(BIN)/tacit audit runs/demo
	@echo; echo "3 of 3  Now every client has its own epsilon: 17 allow about 1, three about 10. Three rules, the same rows and budgets, five seeds:"; echo
	$(BIN)/tacit compare digits-pfa --vary aggregate.rule=mean,weighted,random-effects --seeds 5 --set seed.data=1 --out runs/demo-rules --force
	@echo; echo "A plain mean lets the noisiest clients spoil the model. Both rules that know each client's epsilon beat it, seed by seed (second table:"
	@echo "paired differences, with p-values). Which of those two is the better one, five seeds may not tell; nor is any of this about other rows or budgets."
	@echo; echo "Look:      open runs/demo/report.html and runs/demo-rules/report.html in a browser"
	@echo "Try next:  $(BIN)/tacit plan digits --set privacy.epsilon=1          what a tighter promise costs, before anything runs"
	@echo "           $(BIN)/tacit run runs/demo/experiment.toml --set privacy.epsilon=1 --out runs/second"
	@echo "           $(BIN)/tacit deploy init trial --sites 3 --set train.rounds=5 && $(BIN)/tacit deploy up trial     three sites on a network"
	@echo "           docs/concepts.md explains every word above; README.md lists all commands"

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

TIMES ?= 1
test-faults: setup  # federations of real processes that are killed, stopped and starved; they mostly wait, so four at once
	for turn in $$(seq $(TIMES)); do \
		echo "turn $$turn of $(TIMES)"; \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults -n 4 --maxschedchunk 1 tests/federation/operate/test_faults_kills.py tests/federation tests/redteam/test_soak.py || exit 1; \
	done

MESSAGES ?= 100000
fuzz: setup  # mutated messages to a site and to a server, over the lines of a deployment
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m redteam.fuzz site --count $(MESSAGES)
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m redteam.fuzz server --count $(MESSAGES)

MINUTES ?= 10
soak: setup  # three sites on loopback, attacked by a stranger and by one of them
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m redteam.soak --minutes $(MINUTES)

AXE := $(VENV)/axe/node_modules/axe-core/axe.min.js
axe: $(AXE)  # what the tests of the report page look for faults of accessibility with; they skip without it
$(AXE): | setup
	npm install --silent --no-fund --no-audit --prefix $(VENV)/axe axe-core@4.14.0

package: setup  # builds the wheel and the sdist, and runs the one without the repository
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m package tests/test_package.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

docs: setup  # the site, strictly: a page that no list names, or a link that leads nowhere, ends it
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

notebooks: setup  # the tutorials as a reader runs them; `python docs/notebooks.py` writes what they print into them
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m notebooks -n 2 --maxschedchunk 1 tests/test_notebooks.py tests/test_docs_site.py

docs-commands: setup  # what pages tell people to type, made small
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m docs_commands -n 2 --maxschedchunk 1 tests/test_docs_run.py tests/test_programs.py

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
	$(BIN)/python bench/masks.py
	$(BIN)/python bench/encrypted.py
	$(BIN)/python bench/proofs.py
	$(BIN)/python bench/report.py
	$(BIN)/python bench/flower.py
	$(BIN)/python bench/sites.py

clean:
	rm -rf $(VENV) runs build *.egg-info
