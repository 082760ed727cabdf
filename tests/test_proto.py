"""The messages: generated code as committed, comments on everything, no attack material, little overhead."""

import re
import subprocess
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet
from tests.vectors import reference

from silomix.runtime.core.errors import Reason
from silomix.runtime.core.numbers.packing import pack
from silomix.runtime.core.numbers.plan import Encoding, Level, Quantiser, plan
from silomix.runtime.core.policy import Policy
from silomix.runtime.core.protocol.messages import body_root, chunk_digest
from silomix.v1 import body_pb2, plan_pb2

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "proto"
SOURCES = sorted(PROTO.glob("silomix/v1/*.proto"))
SPEC = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
GRPC_PREFIX_BYTES = 5


def protoc(*arguments: str) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *arguments, *map(str, SOURCES)]
    subprocess.run(command, check=True, timeout=120)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    out = tmp_path_factory.mktemp("descriptors") / "set.bin"
    protoc("--include_source_info", f"--descriptor_set_out={out}")
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


Location = tuple[int, ...]


def enum_items(path: Location, name: str, enum: EnumDescriptorProto) -> Iterator[tuple[Location, str]]:
    yield path, name
    for i, value in enumerate(enum.value):
        yield (*path, EnumDescriptorProto.VALUE_FIELD_NUMBER, i), f"{name}.{value.name}"


def message_items(path: Location, name: str, message: DescriptorProto) -> Iterator[tuple[Location, str]]:
    yield path, name
    for i, field in enumerate(message.field):
        yield (*path, DescriptorProto.FIELD_FIELD_NUMBER, i), f"{name}.{field.name}"
    for i, oneof in enumerate(message.oneof_decl):
        if oneof.name.startswith("_"):
            continue  # protoc's own, for an optional field
        yield (*path, DescriptorProto.ONEOF_DECL_FIELD_NUMBER, i), f"{name}.{oneof.name}"
    for i, enum in enumerate(message.enum_type):
        yield from enum_items((*path, DescriptorProto.ENUM_TYPE_FIELD_NUMBER, i), f"{name}.{enum.name}", enum)
    for i, nested in enumerate(message.nested_type):
        yield from message_items((*path, DescriptorProto.NESTED_TYPE_FIELD_NUMBER, i), f"{name}.{nested.name}", nested)


def items(file: FileDescriptorProto) -> Iterator[tuple[Location, str]]:
    """Every message, field, oneof, enum and value of a file, with its path in the descriptor."""
    for i, message in enumerate(file.message_type):
        yield from message_items((FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, i), message.name, message)
    for i, enum in enumerate(file.enum_type):
        yield from enum_items((FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, i), enum.name, enum)


def comments(file: FileDescriptorProto) -> dict[Location, str]:
    return {tuple(at.path): at.leading_comments for at in file.source_code_info.location}


def test_generated_code_is_what_protoc_writes(tmp_path: Path) -> None:
    protoc(f"--python_out={tmp_path}", f"--pyi_out={tmp_path}")
    names = {path.relative_to(root) for root in (tmp_path, PROTO) for path in root.glob("silomix/v1/*_pb2.py*")}
    assert len(names) == 2 * len(SOURCES), "generated files and .proto files do not pair up: run `make proto`"
    for name in sorted(names):
        committed = PROTO / name
        assert committed.is_file(), f"{name} is missing: run `make proto`"
        assert committed.read_bytes() == (tmp_path / name).read_bytes(), f"{name} is out of date: run `make proto`"


def test_everything_has_a_comment(files: list[FileDescriptorProto]) -> None:
    bare = [name for file in files for path, name in items(file) if not comments(file).get(path, "").strip()]
    assert not bare, f"no leading comment: {bare}"


def test_every_field_names_what_refuses_it(files: list[FileDescriptorProto]) -> None:
    """A comment that gives a range and no reason leaves every reader to invent one."""
    silent = [
        f"{message.name}.{field.name}"
        for file in files
        for i, message in enumerate(file.message_type)
        for j, field in enumerate(message.field)
        if not re.search(
            r"\[[a-z_0-9]+\]",
            comments(file).get(
                (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, i, DescriptorProto.FIELD_FIELD_NUMBER, j), ""
            ),
        )
    ]
    assert not silent, f"no reason in brackets: {silent}"


def test_reasons_are_those_of_the_specification(files: list[FileDescriptorProto]) -> None:
    text, table = re.split(r"\n## \d Errors\n", SPEC)
    listed = set(re.findall(r"^\| `([a-z_0-9]+)` \|", table, re.MULTILINE))
    cited = set(re.findall(r"\[([a-z_0-9]+)\]", text))
    for file in files:
        cited |= set(re.findall(r"\[([a-z_0-9]+)\]", " ".join(comments(file).values())))
    assert cited <= listed, f"cited, but not in the table of docs/protocol.md: {sorted(cited - listed)}"
    known = {str(reason) for reason in Reason}
    assert known <= listed, f"in errors.Reason, but not in the table of docs/protocol.md: {sorted(known - listed)}"


@pytest.mark.parametrize(
    ("mirror", "original"),
    [(plan_pb2.Encoding, Encoding), (plan_pb2.Level, Level), (plan_pb2.Quantiser, Quantiser)],
    ids=["Encoding", "Level", "Quantiser"],
)
def test_enums_mirror_the_plan(mirror: Any, original: type[StrEnum]) -> None:
    prefix = original.__name__.upper()
    assert list(mirror.keys()) == [f"{prefix}_UNSPECIFIED", *(f"{prefix}_{member.name}" for member in original)]
    assert list(mirror.values()) == list(range(len(original) + 1))


def test_enum_words_are_those_of_the_plan(files: list[FileDescriptorProto]) -> None:
    """The word that a comment quotes is the one that the digest takes in."""
    (file,) = (file for file in files if file.name == "silomix/v1/plan.proto")
    words = [re.match(r' "([^"]+)":', comments(file)[path]) for path, name in items(file) if is_specified_value(name)]
    assert [word and word[1] for word in words] == [*Encoding, *Level, *Quantiser]


def is_specified_value(name: str) -> bool:
    return name.split(".")[-1].isupper() and not name.endswith("_UNSPECIFIED")


def test_no_message_carries_attack_material(files: list[FileDescriptorProto]) -> None:
    """A silo's loss, accuracy, sample and clip counts stay on the silo, and how long it trains."""
    forbidden = re.compile(r"loss|accura|sample|clip|metric|epoch", re.IGNORECASE)
    found = {name for file in files for _, name in items(file) if forbidden.search(name)}
    agreements = {
        "Greeting.epochs",
        "Epoch",
        "Epoch.file",
        "Epoch.accepted",
        "Epoch.pins",
    }  # of owners, not of training
    assert found == agreements


def frames(total: int, chunk_parameters: int) -> Iterator[body_pb2.Frame]:
    """A whole body under the default plan, with three hops and the aggregator."""
    p = plan(n_max=10, r=4)
    assert (p.moduli, p.widths) == ((512, 511), (9, 9))
    rng = np.random.default_rng(7)
    nodes = ("shuffler-berlin", "shuffler-paris", "shuffler-madrid", "aggregator")
    seeds = [body_pb2.SealedSeed(recipient=n, sealed=rng.bytes(80), commitment=rng.bytes(32)) for n in nodes]
    starts = range(0, total, chunk_parameters)
    header = body_pb2.Header(
        silo="hospital-of-the-longest-name",
        manifest_digest=rng.bytes(32),
        seeds=seeds,
        chunks=len(starts),
        signature=rng.bytes(64),
    )
    yield body_pb2.Frame(header=header)
    digests = []
    for index, first in enumerate(starts):
        n = min(chunk_parameters, total - first)
        planes = [rng.bytes(size) for size in p.plane_bytes(n)]
        digests.append(chunk_digest(index, first, planes))
        yield body_pb2.Frame(chunk=body_pb2.Chunk(index=index, first_parameter=first, planes=planes))
    yield body_pb2.Frame(trailer=body_pb2.Trailer(root=body_root(digests), signature=rng.bytes(64)))


def test_framing_overhead_is_under_one_percent() -> None:
    """Section 3: 100,000 values, three hops, header, trailer and gRPC's own prefix included."""
    total, chunk_parameters = 100_000, 65_536
    body = list(frames(total, chunk_parameters))
    assert [frame.WhichOneof("kind") for frame in body] == ["header", "chunk", "chunk", "trailer"]
    full = body[1].chunk
    assert [len(plane) for plane in full.planes] == [73_728, 73_728]
    assert len(body[1].SerializeToString()) - 2 * 73_728 < 32
    sent = sum(GRPC_PREFIX_BYTES + len(frame.SerializeToString()) for frame in body)
    needed = total * 18 / 8
    assert sent / needed - 1 < 0.01


def test_a_body_survives_the_wire() -> None:
    for frame in frames(20, 8):
        assert body_pb2.Frame.FromString(frame.SerializeToString()) == frame


def test_examples_of_section_3() -> None:
    plane = pack(np.array([1, 2, 510], np.uint16), 9)
    assert f"are the bytes `{plane.hex(' ')}`" in SPEC
    assert plane == reference.pack([1, 2, 510], 9)
    root = reference.root([reference.chunk_digest(0, 0, [plane, plane])])
    assert f"has the root\n`{root.hex()}`" in SPEC
    assert body_root([chunk_digest(0, 0, [plane, plane])]) == root


def test_defaults_are_those_of_the_policy() -> None:
    """Section 3 and the manifest name the length of a chunk."""
    assert f"`chunk_parameters`, {Policy().chunk_parameters:,} by default" in SPEC.replace("\n", " ")
    manifest = (PROTO / "silomix" / "v1" / "manifest.proto").read_text(encoding="utf-8")
    assert f"{Policy().chunk_parameters} unless the policy says" in manifest
