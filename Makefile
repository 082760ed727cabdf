# Two commands for a newcomer: `make demo` and `make test`. Everything else is for those who change the code.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-full bench lint proto clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	touch $(STAMP)

demo: $(STAMP)            ## the main job, on this machine
	$(BIN)/silomix demo

test: lint                ## lint, types, then every test but the slow ones
	$(BIN)/pytest -m 'not full'

test-full: lint           ## the slow ones too
	$(BIN)/pytest

bench: $(STAMP)           ## the codec against memcpy, in one run
	$(BIN)/silomix bench codec

lint: $(STAMP)            ## ruff, mypy --strict, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint proto

proto: $(STAMP)           ## write the generated code beside the .proto files
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=proto --pyi_out=proto proto/silomix/v1/*.proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --grpc_python_out=proto proto/silomix/v1/services.proto

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
