"""What each signature covers, by the reference's digest: nothing may serve twice, so each part has to be there."""

import struct
from dataclasses import replace

import pytest
from blake3 import blake3
from tests.core.protocol.federations import cohort, federation, fence, header, headers, manifest
from tests.vectors import reference

from silomix.runtime.core.protocol.messages import (
    Grouping,
    Receipt,
    body_root,
    chunk_digest,
    delivery_digest,
    release_digest,
    trailer_digest,
)

F = federation()
M = manifest(F, attempt=2, fences=(fence(F, "hop-1", 1, 1), fence(F, "hop-2", 1, 1)), invited=F.silo_names[1:])
H = header(M, "silo-2")
C = cohort(M, headers(M, F))
RECEIPT = Receipt("silo-2", M.digest, bytes([7]) * 32, "hop-1")
KEY, FENCE = M.hop_keys[0], M.fences[0]
ROOT = bytes([8]) * 32

Parts = tuple[str | int | bytes, ...]


def manifests_parts() -> Parts:
    """As proto/silomix/v1/manifest.proto lists them; a repeated field is its count and then its elements."""
    keys: list[int | bytes] = []
    for several in (M.hop_keys, M.aggregator_keys):
        keys.append(len(several))
        for key in several:
            keys += [key.digest(F.digest), key.signature]
    fences = [part for f in M.fences for part in (f.digest(F.digest), f.signature)]
    bounds = [struct.pack("<d", bound) for bound in M.bounds]
    before: Parts = (F.digest, 1, 2, M.model, M.schema.digest, F.plan.digest, len(bounds), *bounds, "delta", "sum")
    middle: Parts = (len(M.chain), *M.chain, *keys, 0, len(M.invited), *M.invited)
    return before + middle + (M.minimum_cohort, M.chunk_parameters, M.deadline_s, len(M.fences), *fences)


COVERED: dict[str, tuple[bytes, Parts]] = {
    "round-key": (
        KEY.digest(F.digest),
        (F.digest, "hop-1", "silo-2", 1, 2, KEY.public_key, KEY.last_released),
    ),
    "fence": (FENCE.digest(F.digest), (F.digest, "hop-1", 1, 1)),
    "manifest": (M.digest, manifests_parts()),
    "header": (
        H.digest,
        ("silo-2", M.digest, 3, *(part for s in H.seeds for part in (s.recipient, s.sealed, s.commitment)), H.chunks),
    ),
    "receipt": (RECEIPT.digest, ("silo-2", M.digest, RECEIPT.root, "hop-1")),
    "cohort": (C.digest, (M.digest, 3, *(part for p in C.participants for part in (p.silo, p.header)))),
    "grouping": (Grouping((0, 1, 0)).digest(C.digest), (C.digest, 3, 0, 1, 0)),
    "trailer": (trailer_digest(H.digest, ROOT), (H.digest, ROOT)),
    "release": (release_digest("hop-1", C.digest, ROOT), ("hop-1", C.digest, ROOT)),
    "delivery": (delivery_digest("hop-2", M.digest, ROOT), ("hop-2", M.digest, ROOT)),
    "chunk": (
        chunk_digest(1, 4, [b"a", b"bc"]),
        (1, 4, blake3(b"a").digest(), blake3(b"bc").digest()),
    ),
    "body": (body_root([ROOT, H.digest]), (2, ROOT, H.digest)),
}


@pytest.mark.parametrize("purpose", COVERED)
def test_a_signature_covers_what_the_specification_lists(purpose: str) -> None:
    found, parts = COVERED[purpose]
    assert found == reference.digest(purpose, *parts)


def test_a_signature_is_not_part_of_what_it_covers() -> None:
    assert replace(RECEIPT, signature=b"x").digest == RECEIPT.digest
    assert replace(C, signature=b"x").digest == C.digest
    assert replace(H, signature=b"x").digest == H.digest
    assert replace(KEY, signature=b"x").digest(F.digest) == KEY.digest(F.digest)
    assert replace(FENCE, signature=b"x").digest(F.digest) == FENCE.digest(F.digest)
