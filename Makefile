# make environment | run | test | slow | thorough | malformed | check | format | bench | soak | faults | docs | pictures |
#      site | dist | protos | gpu | kernels | clusters | types | clean
# Every target builds its own environment first: only make and CPython 3.11 or newer are needed.
# Tests run in a process for each core; `TEST_JOBS=0` keeps to one, as a debugger needs it.
# `make test PYTHON=python3.13` chooses the interpreter; each one so chosen has its own environment.

PYTHON :=
VENV   := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
CHOICES := $(or $(PYTHON),python3.11 python3.12 python3.13 python3)
FIND_PYTHON = for p in $(CHOICES); do \
	command -v $$p >/dev/null 2>&1 && \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && \
	echo $$p && break; done

SOAK_SECONDS ?= 7200
FAULTS_ARGS ?=
MALFORMED_ARGS ?=
RUN_ARGS ?=
TEST_ARGS ?=
TEST_JOBS ?= auto
GPU_ARGS ?=

.PHONY: environment run test slow thorough malformed check format types bench soak faults docs pictures site dist protos gpu kernels clusters clean

environment: $(STAMP)

run: $(STAMP)
	$(VENV)/bin/bireme launch --servers 2 --trainers 2 --log-dir build/run/log \
		examples/digits.py --save build/run $(RUN_ARGS)

test: $(STAMP)
	$(VENV)/bin/pytest -n $(TEST_JOBS) --dist worksteal $(TEST_ARGS)

slow: $(STAMP)
	$(VENV)/bin/pytest -m slow $(TEST_ARGS)

thorough: $(STAMP)
	BIREME_THOROUGH=1 $(VENV)/bin/pytest -n $(TEST_JOBS) --dist worksteal $(TEST_ARGS)
	$(RUN) -m tests.faults.resuming --rounds 200 --jobs 2
	$(RUN) -m tests.durability --jobs 2

malformed: $(STAMP)
	$(RUN) -m tests.malformed $(MALFORMED_ARGS)

check: $(STAMP) types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

format: $(STAMP)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

types: $(STAMP)
	$(RUN) tools/link_tree.py

bench: $(STAMP)
	@for file in benchmarks/bench_*.py; do echo "== $$file"; $(RUN) $$file || exit 1; done

soak: $(STAMP)
	rm -rf build/soak
	FLAGS_checkpoint_dir=build/soak FLAGS_checkpoint_every_steps=100 \
		$(VENV)/bin/bireme chaos examples/resume.py --servers 2 --trainers 2 --count 10 \
		--seconds $(SOAK_SECONDS) --keep build/soak --steps 3000

faults: $(STAMP)
	$(RUN) -m tests.faults $(or $(FAULTS_ARGS),--write)

docs: $(STAMP)
	$(VENV)/bin/bireme flags --markdown > docs/flags.md
	$(RUN) tools/operators_table.py > docs/operators.md
	$(RUN) tools/compatibility_table.py > docs/compatibility.md
	$(RUN) tools/differences_table.py > docs/differences.md
	$(RUN) tools/grafana_dashboard.py > docs/monitoring/grafana.json
	$(RUN) tools/walk.py --write

pictures: $(STAMP)
	$(RUN) tools/dashboard_pictures.py

site: $(STAMP) types
	$(RUN) -m venv build/docs
	build/docs/bin/pip install -q --disable-pip-version-check -e '.[docs]'
	build/docs/bin/mkdocs build --strict --quiet
	@echo "the site is in build/site/index.html"

# The same bytes on every run: the archives carry the time of the last commit.
dist: $(STAMP)
	$(RUN) -m venv build/packaging
	build/packaging/bin/pip install -q --disable-pip-version-check 'build>=1.2' 'twine>=6'
	build/packaging/bin/python tools/build_dist.py
	build/packaging/bin/twine check --strict dist/*

protos: types
	$(RUN) -m grpc_tools.protoc -I build/types --python_out=build/types --pyi_out=build/types \
		build/types/bireme/protos/*.proto

gpu: $(STAMP)
	$(RUN) tools/gpu.py $(GPU_ARGS)

# With the optional libraries that kernels use
kernels: $(STAMP) types
	$(RUN) -m venv build/kernels
	build/kernels/bin/pip install -q --disable-pip-version-check -e '.[dev,numba,onednn]'
	build/kernels/bin/pytest -n $(TEST_JOBS) tests/ops tests/models tests/runtime $(TEST_ARGS)

# With Ray, MPI, Slurm and S3, as far as they are installed here
clusters: $(STAMP) types
	$(RUN) -m venv build/clusters
	build/clusters/bin/pip install -q --disable-pip-version-check -e '.[dev,ray,mpi]' 'moto[server]' s3fs
	build/clusters/bin/pytest tests/fleet/test_ray.py tests/fleet/launcher/test_slurm.py \
		tests/distributed tests/collective/test_mpi.py tests/io/test_s3.py $(TEST_ARGS)

$(STAMP): pyproject.toml
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "bireme needs CPython 3.11 or newer with venv and pip (looked for: $(CHOICES))." >&2; \
		echo "On Debian or Ubuntu: apt-get install python3 python3-venv" >&2; exit 1; \
	fi; \
	[ -x $(RUN) ] || { echo "building $(VENV) with $$($$python --version)"; $$python -m venv $(VENV); }
	$(RUN) -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache
