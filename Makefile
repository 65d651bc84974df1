PYTHON ?= python3
BIN := .venv/bin
PIP := --quiet --disable-pip-version-check
# Digits of fonts, three of ten classes rare. benchmarks/demo.py says what other seeds make of it.
DEMO := siftback compare --data fonts:8000,hard=0.05 --rare 30 --model fastcnn --width 4 --lr 0.2 \
	--strategies 'traditional,Memory()' --budget 4 --seed 0,1,2,3,4 --evaluations 2
OWN := siftback compare --data imagefolder:PATH --strategies 'traditional,Memory()' --budget 4

# Into a virtual environment, with constraints, this extra. pip finds torch, of the build that pip is told
# to take, and uv installs all, in a fifth of pip's time; where uv finds no index, pip does.
define install
	$(1)/bin/python -m pip $(PIP) install -c $(2) uv
	$(1)/bin/python -m pip $(PIP) download -c $(2) --no-deps --dest $(1)/wheels torch
	$(1)/bin/uv pip install --quiet --python $(1)/bin/python -c $(2) $(1)/wheels/*.whl -e ".[$(3)]" \
		|| $(1)/bin/python -m pip $(PIP) install -c $(2) $(1)/wheels/*.whl -e ".[$(3)]"
	rm -r $(1)/wheels
endef

.PHONY: demo test test-fast unit every coverage benchmarks red oldest lowest energy check results golden report recipes docs dist wheel clean

demo: .venv/lab  ## Train on images made here with and without Memory() at the same cost; say what it saved.
	$(BIN)/$(DEMO) --out runs/demo --overwrite
	@echo "your own images, a folder for each class: $(BIN)/$(OWN)"

test: check unit  ## Lint, type-check, and run every test.

# Without what trains, which takes most of the time: the frameworks, and much of the laboratory.
TRAINING := frameworks contrib single_pass lab/run lab/experiments lab/recipes lab/models lab/data \
	lab/report/test_report.py lab/figures/test_figures.py lab/figures/test_error_plots.py \
	cli/test_cli.py test_docs.py test_notebooks.py test_peers.py losses/test_sequences.py
FAST := --one-case -k "not killed" \
	-m "not (slow or browser or distributed or network or gpu or red)" \
	$(addprefix --ignore=tests/,$(TRAINING))

test-fast: .venv/dev  ## Run one case of each test that trains little, in less than two minutes.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal tests $(FAST)

unit: .venv/dev  ## Run every test; of those that are sampled, some cases.
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal

every: .venv/dev  ## Run every case of the tests of which `make unit` runs some cases or none.
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal \
		--every-case -m "sampled or nightly"

coverage: .venv/dev  ## Run every test, and print the lines that none of them ran.
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist worksteal \
		--cov=siftback --cov-report=term-missing:skip-covered --cov-fail-under=90

benchmarks: .venv/dev  ## Measure what has a threshold, as ratios, and fail where one is missed.
	for name in data scorers selectors; do \
		$(BIN)/python benchmarks/$$name.py --quick --check --json runs/benchmarks/$$name.json || exit 1; done

red: .venv/dev  ## The counts that must hold, in full: takes up to an hour, and prints them.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxschedchunk 1 tests -m red \
		--kills 107 --folders 50 --batches 1000000 --leaves 1000000 --scores 25000000 --inputs 1000000

oldest:  ## The tests of the frameworks, with the oldest releases of them.
	$(PYTHON) -m venv .venv-oldest
	grep -vE '^(accelerate|keras|lightning|packaging|transformers|tokenizers|trl)==' constraints.txt \
		| cat - constraints-oldest.txt > .venv-oldest/constraints.txt
	$(call install,.venv-oldest,.venv-oldest/constraints.txt,dev)
	.venv-oldest/bin/python -m pytest --numprocesses auto --dist worksteal tests/frameworks

LABORATORY := lab,noise,tensorboard

lowest:  ## Tests of the laboratory, with the oldest releases of PyTorch and all else that it allows.
	$(PYTHON) -m venv .venv-lowest
	grep -oE '"[a-z0-9-]+>=[0-9.]+"' pyproject.toml | sed 's/"//g; s/>=/==/' > .venv-lowest/constraints.txt
	$(call install,.venv-lowest,.venv-lowest/constraints.txt,$(LABORATORY))
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python -c constraints.txt \
		hypothesis pytest pytest-xdist
	OMP_NUM_THREADS=1 .venv-lowest/bin/python -m pytest --numprocesses auto --dist worksteal --one-case \
		-W default::DeprecationWarning -W default::ResourceWarning \
		-W default::pytest.PytestUnraisableExceptionWarning \
		tests/lab/data tests/lab/experiments tests/lab/run tests/cli/test_cli.py tests/cli/test_help.py

energy:  ## The test of joules in records, with Zeus, beside whose requirements Ray cannot be imported.
	$(PYTHON) -m venv .venv-energy
	$(call install,.venv-energy,constraints.txt,dev)
	.venv-energy/bin/python -m pip $(PIP) install -c constraints.txt ".[energy]"
	.venv-energy/bin/python -m pytest tests/lab/run/test_energy.py

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

results: .venv/lab  ## Write docs/results.md, and the README's numbers and picture, from the records under results/.
	$(BIN)/siftback results results --out docs/results.md --into README.md --saving docs/saved.svg

golden: .venv/dev  ## Write the numbers of tests/golden again, where new records or definitions change them.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/golden --remake-golden

report: .venv/lab  ## Build report/index.html, the whole report, from the same records.
	$(BIN)/siftback report $(filter-out results/forecast results/guides results/map results/tuning results/peers results/rare,$(wildcard results/*)) --out report/index.html

recipes: .venv/lab  ## Rebuild the tables of docs/recipes.md from the recipes.
	sed -i '/^## The recipes$$/q' docs/recipes.md
	(echo; $(BIN)/siftback recipes --markdown) >> docs/recipes.md

docs: .venv/docs  ## Build site/, the documentation; a warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

dist: .venv-dist  ## Build wheel and sdist, check what an index shows of them, list what is in them.
	rm -rf dist
	.venv-dist/bin/python -m build --outdir dist .
	.venv-dist/bin/twine check --strict dist/*
	.venv-dist/bin/python -m zipfile --list dist/*.whl
	tar --list --file dist/*.tar.gz

wheel: dist  ## Install that wheel beside nothing but torch, and run the demo from it.
	rm -rf .venv-wheel
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip $(PIP) install -c constraints.txt torch
	time .venv-wheel/bin/python -m pip $(PIP) install -c constraints.txt dist/*.whl
	time .venv-wheel/bin/python -c "import siftback"
	.venv-wheel/bin/python -m pip $(PIP) install -c constraints.txt \
		"$$(echo dist/*.whl)[lab]"
	.venv-wheel/bin/siftback --version
	.venv-wheel/bin/$(DEMO) --out .venv-wheel/demo

.venv-dist:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/python -m pip $(PIP) install -c constraints.txt build twine

# A marker per extra, so that each is installed once and again when the requirements change.
.venv/%: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Siftback needs Python 3.11 or newer; give one with: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(call install,.venv,constraints.txt,$*)
	touch $@

clean:
	rm -rf .venv .venv-dist .venv-lowest .venv-oldest .venv-wheel dist report runs site
