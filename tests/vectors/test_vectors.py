"""The committed vectors: the reference reproduces them, and the product's digests, roots and plans agree with them.

Those of planes, values and masks are checked beside the code that makes them, in tests/core.
"""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.vectors import generate, reference

from silomix.runtime.core.digest import digest, fast_hash, frame
from silomix.runtime.core.errors import LocalFault
from silomix.runtime.core.numbers.masks import Secret, mask_stream
from silomix.runtime.core.numbers.plan import Encoding, Granularity, Level, Plan, Quantiser, plan
from silomix.runtime.core.numbers.schema import Dtype, Schema, TensorSpec
from silomix.runtime.core.policy import UpdateKind
from silomix.runtime.core.protocol.messages import (
    Bond,
    Cohort,
    Fence,
    Grouping,
    Header,
    Manifest,
    Participant,
    Receipt,
    RoundKey,
    SealedSeed,
    body_root,
    chunk_digest,
    delivery_digest,
    trailer_digest,
)
from silomix.runtime.core.protocol.release import PadContext, Ready, Trail, bodies_root, pad_digest
from silomix.runtime.core.protocol.roundlog import Attempted, Outcome, Record, computed_digest, countersign_digest

FILES = generate.files()
BYTES = {
    "agreed", "came", "cohort", "commitment", "federation", "grouping", "head", "header", "manifest", "model",
    "model_after", "model_before", "pad", "previous", "public_key", "record", "root", "sealed", "sent", "signature",
    "state", "state_after", "state_before",
}  # fmt: skip
"""Fields that are hex in the files."""


@pytest.mark.parametrize(("name", "content"), FILES.items(), ids=FILES)
def test_the_reference_reproduces_what_is_committed(name: str, content: reference.Json) -> None:
    assert (generate.HERE / name).read_text() == generate.dump(content)


def test_every_committed_file_is_generated() -> None:
    assert {path.name for path in generate.HERE.iterdir()} == set(FILES)


@pytest.mark.parametrize("module", [generate, reference])
def test_the_reference_shares_nothing_with_the_product(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert imported
    assert not [name for name in imported if name.startswith(("silomix", "numpy", "numba"))]


def test_the_reference_seals_as_rfc_9180_appendix_a_1_1_does() -> None:
    sealed = reference.hpke_seal(
        b"Beauty is truth, truth beauty",
        ephemeral=bytes.fromhex("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736"),
        public=bytes.fromhex("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"),
        info=b"Ode on a Grecian Urn",
        aad=b"Count-0",
    )
    assert sealed[:32].hex() == "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
    assert sealed[32:].hex() == (
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )


def test_digests_of_section_5() -> None:
    vectors = generate.load("digest.json")["good"]
    for vector in vectors:
        parts = [bytes.fromhex(value) if tag == "b" else value for tag, value in vector["parts"]]
        assert frame(vector["domain"], *parts).hex() == vector["frame"]
        assert digest(vector["domain"], *parts).hex() == vector["digest"]
    assert len({vector["digest"] for vector in vectors}) == len(vectors)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
        (b"abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
        (bytes(i % 251 for i in range(1025)), "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"),
    ],
    ids=["empty", "abc", "1025 bytes"],
)
def test_planes_are_hashed_with_blake3(content: bytes, expected: str) -> None:
    assert fast_hash(content).hex() == fast_hash(memoryview(content)).hex() == expected


@pytest.mark.parametrize("vector", generate.load("root.json")["good"], ids=lambda v: str(len(v["chunks"])))
def test_roots_of_section_3(vector: reference.Json) -> None:
    digests = []
    for i, chunk in enumerate(vector["chunks"]):
        planes = [bytes.fromhex(plane) for plane in chunk["planes"]]
        digests.append(chunk_digest(i, chunk["first"], planes))
        assert chunk_digest(i, chunk["first"], [memoryview(plane) for plane in planes]) == digests[-1]
    assert [d.hex() for d in digests] == vector["digests"]
    assert body_root(digests).hex() == vector["root"]


def message_of(kind: str, what: reference.Json) -> Any:
    """The product's message with these fields, or its digest where there is no such message."""
    fields: dict[str, Any] = {key: bytes.fromhex(value) if key in BYTES else value for key, value in what.items()}
    match kind:
        case "round key":
            return RoundKey(**fields)
        case "fence":
            return Fence(**fields)
        case "header":
            seeds = tuple(message_of("seed", seed) for seed in what["seeds"])
            return Header(**{**fields, "seeds": seeds})
        case "seed":
            return SealedSeed(**fields)
        case "receipt":
            return Receipt(**fields)
        case "cohort":
            named = (Participant(p["silo"], bytes.fromhex(p["header"])) for p in what["participants"])
            return Cohort(fields["manifest"], tuple(named))
        case "manifest":
            del fields["moduli"]
            lists = {k: tuple(v) for k, v in fields.items() if isinstance(v, list)}
            keys = {k: tuple(message_of("round key", key) for key in what[k]) for k in ("hop_keys", "aggregator_keys")}
            tensors = (
                TensorSpec(t["name"], tuple(t["shape"]), Dtype(t["dtype"]), t["kind"] == "buffer")
                for t in what["schema"]
            )
            special: dict[str, Any] = {
                "earlier": tuple(map(bytes.fromhex, what["earlier"])),
                "schema": Schema(tuple(tensors)),
                "plan": plan_of(what["plan"]),
                "bounds": tuple(map(float.fromhex, what["bounds"])),
                "update": UpdateKind(what["update"]),
                "granularity": Granularity(what["granularity"]),
                "bound": None if what["bound"] is None else message_of("bond", what["bound"]),
                "fences": tuple(message_of("fence", fence) for fence in what["fences"]),
            }
            return Manifest(**{**fields, **lists, **keys, **special})
        case "bond":
            silos = tuple(Participant(p["silo"], bytes.fromhex(p["header"])) for p in what["participants"])
            hops = tuple(message_of("release", {**t, "cohort": "", "grouping": ""}) for t in what["trails"])
            signed = tuple(map(bytes.fromhex, what["signatures"]))
            return Bond(fields["manifest"], silos, fields["grouping"], hops, signed)
        case "grouping":
            return Grouping(tuple(what["groups"])).digest(fields["cohort"])
        case "trailer":
            return trailer_digest(fields["header"], fields["root"])
        case "bodies":
            return bodies_root(map(bytes.fromhex, what["roots"]))
        case "pad":
            return pad_digest(Secret(fields["pad"]))
        case "grouping seal":
            return Grouping((), fields["signature"]).seal
        case "release":
            return Trail(**fields)
        case "ready":
            trails = tuple(message_of("release", trail) for trail in what["trails"])
            return Ready(fields["manifest"], fields["model"], trails)
        case "attempted":
            signatures = tuple((name, bytes.fromhex(signature)) for name, signature in what["signatures"])
            lists = {"chain": tuple(what["chain"]), "silos": tuple(what["silos"]), "signatures": signatures}
            return Attempted(**{**fields, **lists})
        case "record":
            attempts = tuple(message_of("attempted", one) for one in what["attempts"])
            return Record(**{**fields, "outcome": Outcome(what["outcome"]), "attempts": attempts})
        case "countersigned":
            return countersign_digest(fields["record"], fields["name"])
        case "computed":
            return computed_digest(fields["record"], fields["name"])
        case _:
            return delivery_digest(fields["name"], fields["manifest"], fields["root"])


@pytest.mark.parametrize("vector", generate.load("message.json")["good"], ids=lambda v: v["kind"])
def test_what_signatures_cover_in_section_5(vector: reference.Json) -> None:
    found = message_of(vector["kind"], vector["message"])
    federation, head = bytes.fromhex(vector["federation"]), bytes.fromhex(vector["head"])
    if isinstance(found, RoundKey):
        found = found.digest(federation, head)
    elif isinstance(found, Fence):
        found = found.digest(federation)
    elif not isinstance(found, bytes):
        found = found.digest
    assert found.hex() == vector["digest"]


@pytest.mark.parametrize("vector", generate.load("pad.json")["good"], ids=lambda v: f"{v['index']}-{v['length']}")
def test_pads_of_section_5(vector: reference.Json) -> None:
    """A pad is expanded as a mask is, and put on by addition."""
    told = vector["context"]
    cohort, grouping = bytes.fromhex(told["cohort"]), bytes.fromhex(told["grouping"])
    context = PadContext(cohort, grouping, told["hop"], told["chunk_parameters"])
    assert context.info().hex() == vector["info"]
    stream = mask_stream(Secret(bytes.fromhex(vector["pad"])), context, tuple(vector["moduli"]))
    planes = [bytes.fromhex(plane) for plane in vector["planes"]]
    body = np.zeros(sum(map(len, planes)), np.uint8)
    stream.apply(body, vector["index"], vector["length"], 1)
    assert body.tobytes() == b"".join(planes)


def test_the_cipher_counts_in_the_last_four_bytes() -> None:
    """The counter of test case 2 of GCM's specification: its first block of key stream, under a key of zeros."""
    stream = reference.keystream(bytes(16), bytes(12))
    assert bytes(next(stream) for _ in range(16)).hex() == "0388dace60b6a392f328c2b971b2fe78"


def plan_of(policy: reference.Json) -> Plan:
    return plan(
        policy["n_max"],
        policy["r"],
        Encoding(policy["encoding"]),
        Level(policy["level"]),
        policy["weight_levels"],
        policy["headroom"],
        Quantiser(policy["quantiser"]),
    )


@pytest.mark.parametrize("vector", generate.load("plan.json")["good"])
def test_plans_of_section_2(vector: reference.Json) -> None:
    p = plan_of(vector)
    assert list(p.moduli) == vector["moduli"]
    assert list(p.widths) == vector["widths"]
    assert p.digest.hex() == vector["digest"]


@pytest.mark.parametrize("vector", generate.load("plan.json")["bad"])
def test_infeasible_plans_of_section_2(vector: reference.Json) -> None:
    with pytest.raises(LocalFault) as fault:
        plan_of(vector)
    assert fault.value.reason == vector["reason"]
