"""An owner's command: whatever is not a yes in time is a no, which says why."""

from dataclasses import replace

import pytest
from tests.core.protocol.federations import federation, manifest

from silomix.runtime.nodes import before_round
from silomix.runtime.nodes.before_round import NotTakingPart, ask

F = federation()
MANIFEST = manifest(F)


async def told(*command: str, deadline_s: int = 60) -> str:
    """What is said of a command that has not said yes."""
    with pytest.raises(NotTakingPart) as caught:
        await ask(command, replace(MANIFEST, deadline_s=deadline_s), F)
    return str(caught.value)


async def test_a_command_that_ends_well_says_yes() -> None:
    await ask(("sh", "-c", "grep -q federation_digest"), MANIFEST, F)


async def test_any_other_code_says_no_and_the_first_line_of_what_it_says_is_told() -> None:
    assert await told("sh", "-c", "exit 3") == "before_round: sh says no, with code 3"
    because = "before_round: sh says no, with code 1: not today"
    assert await told("sh", "-c", "echo not today >&2; echo nor tomorrow >&2; exit 1") == because


async def test_a_command_that_cannot_be_run_says_no() -> None:
    assert await told("/no/such/command") == "before_round: /no/such/command cannot be run: No such file or directory"


async def test_a_command_has_until_the_rounds_deadline() -> None:
    assert await told("sleep", "1", deadline_s=0) == "before_round: sleep did not answer within 0 s"


async def test_a_command_does_not_have_the_whole_of_a_long_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before_round, "ANSWER_S", 0.01)
    assert await told("sleep", "1") == "before_round: sleep did not answer within 0 s"
