"""Flower's arrays as one vector: what a training changed, value after value, in the order of the server's record.

Arrays of floating-point numbers travel. Others, such as a batch norm's counter of batches, stay what the server sent.
Which ones these are the server tells its clients, by what they were in the first round: Flower's strategies make
floating-point numbers of all arrays.
"""

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from silomix.runtime.core.digest import digest
from silomix.runtime.core.errors import UserError

NAME = "silomix"
"""The record that the server adds to a train message, and what the client's reply consists of."""
ROUND = "server-round"
"""The key of a config that says nothing of what is asked: a round that came to nothing is asked again under another."""

Floats = npt.NDArray[np.float64]


def only_arrays(content: RecordDict, whose: str) -> ArrayRecord:
    """Return the one ArrayRecord of a message, or say that there is not one."""
    records = list(content.array_records.values())
    if len(records) != 1:
        raise UserError(f"{whose} has {len(records)} ArrayRecords; silomix protects the mean of exactly one")
    return records[0]


def staying(arrays: ArrayRecord) -> list[str]:
    """Name the arrays that do not travel."""
    return [name for name, array in arrays.items() if np.dtype(array.dtype).kind != "f"]


def values_in(arrays: ArrayRecord, stay: Collection[str] | None = None) -> int:
    """Count the values that travel: what a federation for these arrays is made for."""
    return sum(array.size for _, array in _moving(arrays, staying(arrays) if stay is None else stay))


def change(before: ArrayRecord, after: ArrayRecord, stay: Collection[str]) -> Floats:
    """Return what a training changed, as one vector."""
    parts: list[Floats] = [np.zeros(0)]
    if list(before) != list(after):
        odd = sorted(set(before) ^ set(after)) or ["the order of the arrays"]
        raise UserError(f"the reply's arrays are not those of the message: {odd[0]} differs")
    for name, old in _moving(before, stay):
        new = after[name].numpy()
        if new.shape != old.shape:
            raise UserError(f"the reply has {name} of shape {new.shape}, and the message had {old.shape}")
        parts.append((new.astype(np.float64) - old.astype(np.float64)).reshape(-1))
    return np.concatenate(parts)


def changed(before: ArrayRecord, vector: npt.NDArray[np.floating], stay: Collection[str]) -> ArrayRecord:
    """Return the arrays after a change."""
    after, at = {name: array.numpy() for name, array in before.items()}, 0
    for name, old in _moving(before, stay):
        part = vector[at : at + old.size].astype(np.float64).reshape(old.shape)
        after[name] = np.asarray(old.astype(np.float64) + part).astype(old.dtype)
        at += old.size
    return ArrayRecord({name: Array(array) for name, array in after.items()})


def question(message: Message) -> bytes:
    """Hash what a client is asked: answers to different models or settings are not to be summed."""
    parts: list[str | bytes | int] = []
    for name, record in sorted(message.content.items()):
        parts += [name, type(record).__name__, len(record)]
        if isinstance(record, ArrayRecord):
            for key, array in record.items():
                parts += [key, array.dtype, str(array.shape), array.data]
        else:
            own = ROUND if name != NAME else "round"
            parts += [f"{key}={value!r}" for key, value in sorted(record.items()) if key != own]
    return digest("flower", message.metadata.message_type, *parts)


def announce(message: Message, number: int, stay: list[str]) -> None:
    """Tell a client which round was opened for a message, and which arrays stay."""
    message.content[NAME] = ConfigRecord({"round": number, "stay": stay})


def announced(message: Message) -> tuple[int, list[str]]:
    """Return the round that the server has opened for a message, and which arrays stay."""
    record = message.content.get(NAME)
    number = record.get("round") if isinstance(record, ConfigRecord) else None
    stay = record.get("stay") if isinstance(record, ConfigRecord) else None
    if not isinstance(number, int) or not isinstance(stay, list):
        raise UserError(
            "the server did not open a protected round for this message: give its strategy "
            "silomix.runtime.flower.Protected(grid, ...) in place of the grid. Nothing was sent"
        )
    return number, [str(name) for name in stay]


def _moving(arrays: ArrayRecord, stay: Collection[str]) -> Iterator[tuple[str, npt.NDArray[np.floating]]]:
    for name, array in arrays.items():
        if name not in stay:
            yield name, array.numpy()
