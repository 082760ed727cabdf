"""Scalars as they travel: as many as the plan has, each in three bytes."""

import pytest

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.protocol.check.forms import read_scalars, write_scalars

SCALARS = ((1, 2), (65536,))


def test_scalars_that_are_written_are_read_back() -> None:
    assert read_scalars(write_scalars(SCALARS), (2, 1)) == SCALARS


@pytest.mark.parametrize("change", [-1, 1, -9])
def test_scalars_of_another_length_are_refused(change: int) -> None:
    raw = (write_scalars(SCALARS) + b"\0")[: 9 + change]
    with pytest.raises(PeerFault) as caught:
        read_scalars(raw, (2, 1))
    assert caught.value.reason is Reason.WRONG_LENGTH
