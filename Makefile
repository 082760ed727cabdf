# Two commands for a newcomer: `make demo` and `make test`. Everything else is for those who change the code.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Byte code is kept, whatever the environment says: tests and federations start many processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-full warm spec system bench mutants fuzz lint proto pins sbom grafana clean

# Most of what is installed is never imported: what is, is compiled then.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e '.[train,traces,dev]'
	touch $(STAMP)

demo: $(STAMP)            ## the main job, on this machine
	$(BIN)/silomix demo

# Three at a time: most of them wait most of the time. A file's tests stay together, since they share federations;
# what takes long comes first.
WORKERS ?= 3
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=20

warm: $(STAMP)            ## compile the kernels once, and not in every test process
	$(BIN)/silomix warm

# Tests of whole federations have deadlines, and several at a time on two busy cores may miss one: what failed is tried
# again, alone. What fails twice has failed.
test:                     ## every test but the slow ones; the slowest 20 at the end
	@$(MAKE) --no-print-directory -j 2 system warm
	$(PYTEST) -m 'not full' || \
		{ echo "once more, one at a time:"; $(BIN)/pytest -n 0 -m 'not full' --last-failed --last-failed-no-failures none; }

test-full: lint system warm  ## the slow ones too, and more examples of every property
	SILOMIX_THOROUGH=1 $(PYTEST)

spec: $(STAMP) system     ## the specification in docs/spec, checked by TLC, small and large
	$(BIN)/pytest tests/spec

# Tests that need a program which is not here are skipped and say so; with CI=true they fail.
SYSTEM := mosquitto:mosquitto promtool:prometheus nft:nftables ip:iproute2 tc:iproute2 chromium:chromium \
          java:default-jre-headless softhsm2-util:softhsm2
system:                   ## the programs that some tests need, if we may install them
	@missing=; for pair in $(SYSTEM); do \
		PATH="$$PATH:/usr/sbin:/sbin" command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair#*:}"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends $$missing; } >/dev/null || \
		echo "could not install$$missing: the tests that need them are skipped"; fi

bench: $(STAMP)           ## the codec against memcpy, in one run
	$(BIN)/silomix bench codec

# All of them take an hour or two; `make mutants SAMPLE=60 SEED=1` takes minutes.
JOBS ?= 2
mutants: $(STAMP)         ## drop each check in turn, and see whether a test notices
	nice -n 10 $(BIN)/python -m tests.mutants --jobs $(JOBS) \
		$(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(MODULE),--module $(MODULE))

# TARGET is one of tests/fuzz/targets.py.
EACH ?= 60
fuzz: $(STAMP)            ## look for bytes that a decoder neither takes nor refuses: EACH=600 TARGET=capture-file
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt '.[fuzz]'
	nice -n 10 $(BIN)/python -m tests.fuzz --seconds $(EACH) $(TARGET)

lint: $(STAMP)            ## ruff, mypy --strict, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint proto

proto: $(STAMP)           ## write the generated code beside the .proto files
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto proto/silomix/v1/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=proto proto/silomix/v1/services.proto

# The images are built of these alone, each file held by its hash. Not torch: its build depends on the index.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 -c constraints.txt --extra traces --extra traps --generate-hashes \
          --no-header --no-annotate pyproject.toml deploy/pins/build.in
pins: $(STAMP)            ## write deploy/pins anew, after a change to the dependencies
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	$(COMPILE) > deploy/pins/slim.txt.new && mv deploy/pins/slim.txt.new deploy/pins/slim.txt
	$(COMPILE) --extra train | \
		awk '/^[a-z]/ { skip = /^(torch|triton|cuda|nvidia)[-=]/ } !skip' > deploy/pins/train.txt.new
	mv deploy/pins/train.txt.new deploy/pins/train.txt

sbom: $(STAMP)            ## what is in the slim image, and in the train image but for torch, as CycloneDX
	mkdir -p dist
	for image in slim train; do $(BIN)/cyclonedx-py requirements deploy/pins/$$image.txt --pyproject pyproject.toml \
		--output-reproducible -o dist/silomix-$$image.cdx.json; done

grafana: $(STAMP)         ## write the dashboard's JSON from runtime/dashboard/panels.py
	$(BIN)/python -m silomix.runtime.dashboard.grafana > deploy/grafana/dashboards/silomix.json.new
	mv deploy/grafana/dashboards/silomix.json.new deploy/grafana/dashboards/silomix.json

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
