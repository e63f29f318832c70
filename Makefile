# make install set up .venv
# make train   set up .venv, train configs/yolo_capture.py on generated images, evaluate, leave pictures;
#              once more replaces that run
# make test    run the tests
# make check   lint, import contracts, types, claims (what CI runs before the tests)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
CONFIG ?= configs/yolo_capture.py
WORK   := work_dirs/$(notdir $(basename $(CONFIG)))

.PHONY: install train test check lint contracts types claims clean

install: $(STAMP)

train: $(STAMP)
	$(BIN)/python tools/train.py $(CONFIG) --overwrite
	$(BIN)/python tools/test.py $(CONFIG) $(WORK)/best.pth --show-dir $(WORK)/pictures/test

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

check: lint contracts types claims

lint: $(STAMP)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pydoclint --quiet --style=google --arg-type-hints-in-docstring=False --check-return-types=False --check-class-attributes=False \
	    --skip-checking-short-docstrings=True --skip-checking-raises=True lucid tools

contracts: $(STAMP)
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

claims: $(STAMP)
	$(BIN)/python tools/prove.py --check

# opencv-python, which mmengine and mmcv ask for by name, needs libGL; the headless build of the same version is the
# same cv2 without it, so a bare machine can import it. `pip check` complains about the missing name; nothing else does.
$(STAMP): setup.cfg pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lucid needs Python 3.11 or newer; name one: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	version=$$($(BIN)/python -c 'from importlib.metadata import distributions as d; print(*{x.version for x in d() if x.name == "opencv-python"})'); \
	if [ -n "$$version" ]; then \
	    $(BIN)/python -m pip uninstall --quiet --yes opencv-python opencv-python-headless && \
	    $(BIN)/python -m pip install --quiet --no-deps opencv-python-headless==$$version; \
	fi
	$(BIN)/python -c 'import cv2' || { echo 'cv2 does not import. Remedy: rm -r $(VENV) and run make again; if it names a missing lib*.so, install that system library.' >&2; exit 1; }
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info
