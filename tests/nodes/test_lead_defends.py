"""An aggregator at which an equation fails, or whose sum is not here: it answers for itself, and charges nobody."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.core.protocol.federations import federation, manifest
from tests.nodes.federations import make
from tests.nodes.leads import leading

from silomix.runtime.core.numbers.plan import Level

MANIFEST = manifest(federation())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("defends") / "f"
    make(directory, 3, 2, insecure=True, level=Level.MALICIOUS)
    return directory / "aggregator"


async def test_an_aggregator_defends_itself_without_a_call(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with leading(home) as node:
        told: list[Any] = []

        async def insist(event: Any) -> None:
            told.append(event)

        monkeypatch.setattr(node, "insist", insist)
        monkeypatch.setattr(node.checking, "_defend", lambda *_: "its defence")
        finding = cast("Any", SimpleNamespace(where="aggregator"))
        await node.checking.ask_defence(MANIFEST, finding, cast("Any", None), cast("Any", None))
        assert told == ["its defence"]


async def test_nobody_is_charged_with_a_false_pad_where_no_sum_is_kept(home: Path) -> None:
    async with leading(home) as node:
        assert node.checking.false_pad(MANIFEST, ()) is None
