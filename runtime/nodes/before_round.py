"""Local governance: a command of the silo's owner is asked before each round whether this silo takes part.

It gets what the round is about on its standard input, as one JSON object. Exit code 0 says yes; anything else says no,
and so does a command that cannot be run or takes too long: a silo takes part only where its owner has said so.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress

from silomix.runtime.core.errors import UserError
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Manifest

ANSWER_S = 60.0
"""Time that the command has, or the round's deadline if that is shorter."""
SAID_BYTES = 200


class NotTakingPart(UserError):  # noqa: N818 - what it is
    """The owner's command has not said yes."""


def question(manifest: Manifest, federation: Federation) -> bytes:
    """What the command is told: what everybody in the federation knows, and nothing of this silo's own."""
    told = {
        "federation": federation.name,
        "federation_digest": federation.digest.hex(),
        "round": manifest.round,
        "attempt": manifest.attempt,
        "rounds": federation.policy.rounds,
        "model": manifest.model.hex(),
        "task": federation.policy.task,
        "chain": list(manifest.chain),
        "invited": list(manifest.invited),
        "deadline_s": manifest.deadline_s,
    }
    return json.dumps(told).encode() + b"\n"


async def ask(command: Sequence[str], manifest: Manifest, federation: Federation) -> None:
    """Ask, and raise if the answer is not yes."""
    seconds = min(ANSWER_S, manifest.deadline_s)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise NotTakingPart(f"before_round: {command[0]} cannot be run: {error.strerror}") from None
    try:
        async with asyncio.timeout(seconds):
            _, errors = await process.communicate(question(manifest, federation))
    except TimeoutError:
        raise NotTakingPart(f"before_round: {command[0]} did not answer within {seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        said = errors[:SAID_BYTES].decode(errors="replace").strip().partition("\n")[0]
        because = f": {said}" if said else ""
        raise NotTakingPart(f"before_round: {command[0]} says no, with code {process.returncode}{because}")
