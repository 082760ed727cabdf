"""Federations for the renderers' tests, made once, and what came of them as documents."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from silomix.runtime.core.policy import Policy
from silomix.runtime.local import create
from silomix.runtime.render.source import Files, Source, load_source

Document = dict[str, Any]
TASK = Policy(task="tests.nodes.toy:task", task_options={"parameters": 50}, rounds=7)
IN_CLUSTER = "{name}.silomix.svc"


def problem(document: Document, version: str) -> str:
    """What that version of Kubernetes would say against an object, strictly; nothing if it is valid."""
    # Here, because it takes seconds to import, and every worker imports every test.
    from kubernetes_validate import ValidationError, validate

    try:
        validate(document, version, strict=True)
    except ValidationError as error:
        return str(error.message)
    return ""


def federation(silos: int = 3, shufflers: int = 2, host: str = IN_CLUSTER) -> Path:
    """A federation that lives as long as the tests; nobody may change it."""
    return _made(silos, shufflers, host)


@functools.cache
def _made(silos: int, shufflers: int, host: str) -> Path:
    place = Path(tempfile.mkdtemp(prefix="silomix-test-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    home = place / "fed"
    create(home, silos, shufflers, policy=TASK, name="hospitals", host=host, base_port=7000, ca=True)
    return home


def source(silos: int = 3, shufflers: int = 2, host: str = IN_CLUSTER) -> Source:
    """A federation, ready to render."""
    return _loaded(federation(silos, shufflers, host))


_loaded = functools.cache(load_source)


def documents(files: Files) -> Iterator[Document]:
    """Every Kubernetes object in what was rendered, without kustomize's own files."""
    for path, data in files.items():
        if path.suffix == ".yaml" and path.name != "kustomization.yaml":
            yield from yaml.load_all(data, yaml.CSafeLoader)


def of_kind(files: Files, kind: str) -> list[Document]:
    """The objects of one kind."""
    return [document for document in documents(files) if document["kind"] == kind]
