"""Faults and bad input, with the outcome that is owed: a refusal with its reason, and the right sum all the same.

docs/protocol.md, sections 5 and 7. Every test ends with a model that is the mean of exactly the silos it should be.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from tests.nodes.federations import (
    PARAMETERS,
    Body,
    Tensors,
    assert_model,
    close_chunk,
    leftovers,
    make,
    manifest_at,
    model_of,
    peer,
    refusal,
    rejections,
    run,
    shuffler,
    shuffler_stub,
    until,
)
from tests.nodes.toy import Toy

from silomix.runtime.config.authority import CertificateAuthority
from silomix.runtime.core.errors import Reason
from silomix.runtime.core.numbers.packing import Residues
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.protocol.messages import Cohort, Participant
from silomix.runtime.local import InProcess
from silomix.runtime.net.answers import ANSWERS
from silomix.runtime.net.transport import Tls, channel
from silomix.runtime.net.version import SAID
from silomix.runtime.net.wire import write_cohort, write_header
from silomix.runtime.nodes.aggregator import AggregatorNode
from silomix.runtime.nodes.facts import read_log
from silomix.runtime.nodes.shuffler import SILO_STREAMS, Spool
from silomix.runtime.store.journal import Journal, JournalError
from silomix.v1 import body_pb2, services_pb2

Frames = list[body_pb2.Frame]


def _update(silo: int, round_: int = 1) -> Tensors:
    return Toy(silo, PARAMETERS).update(round_)


def _counted(federation: InProcess) -> set[str]:
    attempt = shuffler(federation).core.attempt
    return set() if attempt is None else set(attempt.counted)


def _over(federation: InProcess, rounds: int) -> bool:
    return len(federation.aggregator.history) >= rounds


# --- silos that go, come and say things twice -------------------------------------------------------------------------


def test_a_silo_that_dies_while_it_uploads_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("silomix.runtime.nodes.shuffler.LOT_BYTES", 1)  # each chunk is written as it comes
    federation = make(tmp_path / "f", 4, 2, deadline_s=6, chunk_parameters=64)  # 16 chunks, of which it sends 9

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            call = us.shuffler.Submit(metadata=us.metadata)
            for frame in body.frames()[:10]:
                await call.write(frame)
            await until(lambda: len(_counted(running)) == 3 and leftovers(tmp_path / "f"), "its upload has begun")
            call.cancel()
            await until(lambda: not leftovers(tmp_path / "f"), "nothing of it is left")
            history = await running.finished()
            assert [(r.attempts, r.cohort) for r in history] == [(1, 3)]
            assert_model(running.aggregator.tensors, [[0, 1, 2]], federation.policy)

    run(go())


def test_a_stalled_upload_holds_nobody_up_and_comes_too_late(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 1, deadline_s=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            call = us.shuffler.Submit(metadata=us.metadata)
            for frame in body.frames()[:-1]:
                await call.write(frame)
            assert [r.cohort for r in await running.finished()] == [3]
            await call.write(body.last)
            await call.done_writing()
            error = await refusal(lambda: call)
            assert (error.details() or "").startswith(Reason.COHORT_CLOSED)
            await until(lambda: not leftovers(tmp_path / "f"), "nothing of it is left")
            assert_model(running.aggregator.tensors, [[0, 1, 2]], federation.policy)

    run(go())


def test_a_silo_that_hangs_up_while_it_is_counted_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that was verified and durable counts, whatever becomes of the call: never half of it."""
    federation = make(tmp_path / "f", 4, 2)
    adding, go_on = threading.Event(), threading.Event()
    add_to = Spool.add_to

    def slow(self: Spool, total: Residues) -> None:
        if self.header.silo == "silo-04":
            adding.set()
            go_on.wait(10)
        add_to(self, total)

    monkeypatch.setattr(Spool, "add_to", slow)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            call = us.shuffler.Submit(metadata=us.metadata)
            for frame in body.frames():
                await call.write(frame)
            await call.done_writing()
            await until(adding.is_set, "its body is being added")
            call.cancel()
            again = asyncio.create_task(us.submit(body.frames()))
            go_on.set()
            assert (await again).silo == "silo-04"
            assert [r.cohort for r in await running.finished()] == [4]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_silo_that_comes_late_and_one_that_restarts_take_part(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 2, rounds=3)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running:
            await manifest_at(running)
            running.start("silo-04")
            await until(lambda: running.aggregator.history, "round 1 is over")
            await running.stop("silo-02")
            running.start("silo-02")
            assert [r.cohort for r in await running.finished()] == [4, 4, 4]
            assert_model(running.aggregator.tensors, [range(4)] * 3, federation.policy)

    run(go())


def test_a_body_counts_once_and_the_first_is_kept(tmp_path: Path) -> None:
    """Section 5, receipt: the same body gets the same receipt; another one of the silo is refused."""
    federation = make(tmp_path / "f", 4, 2)

    async def go() -> None:
        missing = ("silo-03", "silo-04")
        async with InProcess(tmp_path / "f", without=missing) as running, peer(tmp_path / "f", "silo-04") as us:
            manifest = await manifest_at(running)
            body = Body(us, manifest, _update(3))
            receipt = await us.submit(body.frames())
            assert await us.submit(body.frames()) == receipt
            error = await refusal(lambda: us.submit(Body(us, manifest, _update(2)).frames()))
            assert error.code() is grpc.StatusCode.ALREADY_EXISTS
            assert (error.details() or "").startswith(Reason.BODY_CONFLICT)
            assert rejections(running.nodes["shuffler-1"], Reason.BODY_CONFLICT) > 0
            running.start("silo-03")
            assert [r.cohort for r in await running.finished()] == [4]
            assert await us.submit(body.frames()) == receipt  # also when all is over
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_nan_is_the_silos_own_error_and_nothing_is_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = make(
        tmp_path / "f", 4, 1, deadline_s=2, silo_options=lambda index: {"silo": index, "broken": index == 3}
    )

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            assert [r.cohort for r in await running.finished()] == [3]
            attempt = shuffler(running).core.attempt
            assert attempt is not None
            assert {h.silo for h in attempt.headers.values()} == {"silo-01", "silo-02", "silo-03"}
            assert rejections(running.nodes["silo-04"], Reason.NOT_FINITE) == 1
            assert_model(running.aggregator.tensors, [[0, 1, 2]], federation.policy)

    with caplog.at_level(logging.ERROR, "silomix"):
        run(go())
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert "b holds 1 value" in errors[0]
    assert "position 3" in errors[0]


# --- refusals ---------------------------------------------------------------------------------------------------------


def _spoilt(body: Body, index: int, change: Callable[[body_pb2.Chunk], None]) -> Frames:
    """The body with one chunk changed."""
    chunk = body_pb2.Chunk()
    chunk.CopyFrom(body.chunks[index])
    change(chunk)
    middle = body.middle
    middle[index] = body_pb2.Frame(chunk=chunk)
    return [body.first, *middle, body.last]


def _headed(body: Body, **changes: Any) -> Frames:
    """The body with another header, signed unless the signature is what changes."""
    header = replace(body.header, **changes)
    if "signature" not in changes:
        header = header.signed(body.identity)
    return [body_pb2.Frame(header=write_header(header)), *body.middle, body.last]


def _ended(body: Body, **changes: bytes) -> Frames:
    trailer = body_pb2.Trailer()
    trailer.CopyFrom(body.last.trailer)
    for name, value in changes.items():
        setattr(trailer, name, value)
    return [body.first, *body.middle, body_pb2.Frame(trailer=trailer)]


def _beyond_modulus(body: Body) -> Frames:
    """A residue that is the modulus itself, with a CRC that holds."""
    plan = body.manifest.plan
    plane = next(j for j, (m, w) in enumerate(zip(plan.moduli, plan.widths, strict=True)) if m < 1 << w)
    residues = body.layout.unpack(1, list(body.chunks[1].planes))
    residues[plane, 7] = plan.moduli[plane]
    chunk = close_chunk(residues, plan.widths, 1, body.layout.start(1))
    return [body.first, body.middle[0], body_pb2.Frame(chunk=chunk), *body.middle[2:], body.last]


def _padding(body: Body) -> Frames:
    """A bit set behind the last residue."""
    last = body.layout.chunks - 1
    n = body.layout.length(last)
    assert n % 8

    def change(chunk: body_pb2.Chunk) -> None:
        raw = bytearray(chunk.planes[0])
        raw[n // 8] |= 0x80  # in the first slice
        chunk.planes[0] = bytes(raw)

    return _spoilt(body, last, change)


def _longer(chunk: body_pb2.Chunk) -> None:
    chunk.planes[0] += b"\0"


def _unsealed(body: Body) -> Frames:
    seeds = body.header.seeds
    return _headed(body, seeds=(replace(seeds[0], sealed=bytes(80)), *seeds[1:]))


MALFORMED: dict[str, tuple[Callable[[Body], Frames], Reason]] = {
    "a chunk before the header": (lambda b: [b.middle[0], b.first], Reason.WRONG_SEQUENCE),
    "a trailer before the chunks": (lambda b: [b.first, b.last], Reason.WRONG_SEQUENCE),
    "nothing in a frame": (lambda b: [body_pb2.Frame()], Reason.WRONG_SEQUENCE),
    "no frame at all": (lambda b: [], Reason.WRONG_SEQUENCE),
    "two headers": (lambda b: [b.first, b.first], Reason.WRONG_SEQUENCE),
    "chunks out of order": (lambda b: [b.first, b.middle[1], b.middle[0]], Reason.WRONG_SEQUENCE),
    "a chunk twice": (lambda b: [b.first, b.middle[0], b.middle[0]], Reason.WRONG_SEQUENCE),
    "too few chunks": (lambda b: [b.first, *b.middle[:-1], b.last], Reason.WRONG_SEQUENCE),
    "no trailer": (lambda b: [b.first, *b.middle], Reason.WRONG_SEQUENCE),
    "more after the trailer": (lambda b: [*b.frames(), b.last], Reason.WRONG_SEQUENCE),
    "a wrong start": (lambda b: _spoilt(b, 1, lambda c: setattr(c, "first_parameter", 0)), Reason.WRONG_SEQUENCE),
    "a plane too long": (lambda b: _spoilt(b, 0, _longer), Reason.WRONG_LENGTH),
    "a plane too many": (lambda b: _spoilt(b, 0, lambda c: c.planes.append(b"")), Reason.WRONG_LENGTH),
    "no planes": (lambda b: _spoilt(b, 0, lambda c: c.ClearField("planes")), Reason.WRONG_LENGTH),
    "a residue beyond its modulus": (_beyond_modulus, Reason.RESIDUE_RANGE),
    "padding that is not zero": (_padding, Reason.TRAILING_BITS),
    "another root": (lambda b: _ended(b, root=bytes(32)), Reason.ROOT_MISMATCH),
    "a short root": (lambda b: _ended(b, root=bytes(31)), Reason.WRONG_LENGTH),
    "a trailer that nobody signed": (lambda b: _ended(b, signature=bytes(64)), Reason.BAD_SIGNATURE),
    "a header that nobody signed": (lambda b: _headed(b, signature=bytes(64)), Reason.BAD_SIGNATURE),
    "a short signature": (lambda b: _headed(b, signature=bytes(63)), Reason.WRONG_LENGTH),
    "another silo's name": (lambda b: _headed(b, silo="silo-01"), Reason.UNKNOWN_PEER),
    "a name that nobody has": (lambda b: _headed(b, silo="silo-99"), Reason.UNKNOWN_PEER),
    "another manifest": (lambda b: _headed(b, manifest=bytes(32)), Reason.WRONG_MANIFEST),
    "another length": (lambda b: _headed(b, chunks=3), Reason.WRONG_LENGTH),
    "a seed too few": (lambda b: _headed(b, seeds=b.header.seeds[1:]), Reason.WRONG_KEYS),
    "a seed that does not open": (_unsealed, Reason.SEAL_BROKEN),
    "the same again": (_unsealed, Reason.SEAL_BROKEN),
}


def test_malformed_bodies_are_refused_with_a_reason_and_change_nothing(tmp_path: Path) -> None:
    """One silo sends all that is wrong and then its body, which counts; the next round refuses this round's body."""
    federation = make(tmp_path / "f", 4, 2, rounds=2)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            hop = shuffler(running)
            body = Body(us, await manifest_at(running), _update(3))
            for name, (spoil, reason) in MALFORMED.items():
                before = rejections(hop, reason)
                error = await refusal(partial(us.submit, spoil(body)))
                assert (error.details() or "").startswith(f"{reason}: "), f"{name}: {error.details()}"
                assert error.code() is ANSWERS[reason].status, name
                assert rejections(hop, reason) > before, name
                assert "silo-04" not in _counted(running), name
                assert not [f for f in leftovers(tmp_path / "f") if f.startswith(body.header.digest.hex())], name
            assert not hop.submitting.open["silo-04"]
            await us.submit(body.frames())
            later = Body(us, await manifest_at(running, round_=2), _update(3, 2))
            error = await refusal(lambda: us.submit(body.frames()))  # an old round's body, perfect as it was
            assert (error.details() or "").startswith(Reason.WRONG_MANIFEST)
            await us.submit(later.frames())
            assert [(r.attempts, r.cohort) for r in await running.finished()] == [(1, 4), (1, 4)]
            assert_model(running.aggregator.tensors, [range(4)] * 2, federation.policy)

    run(go())


def test_giant_messages_and_floods_are_refused(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            assert us.tls is not None
            address = federation.shufflers[0].address
            credentials = grpc.ssl_channel_credentials(us.tls.anchor, us.tls.key, us.tls.certificate)
            options = (("grpc.max_send_message_length", -1), ("grpc.ssl_target_name_override", "shuffler-1"))
            async with grpc.aio.secure_channel(address, credentials, options=options) as line:
                hop = shuffler(running)
                giant = body_pb2.Frame(chunk=body_pb2.Chunk(planes=[bytes(hop.limits.at_shuffler)]))
                error = await refusal(
                    lambda: shuffler_stub(line).Submit([body.first, giant], metadata=SAID, timeout=10)
                )
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: not hop.submitting.open.get("silo-04"), "the giant is gone")
            calls = [us.shuffler.Submit(metadata=us.metadata) for _ in range(SILO_STREAMS)]
            for call in calls:
                await call.write(body.first)
            await until(lambda: hop.submitting.open["silo-04"] == SILO_STREAMS, "all begin")
            error = await refusal(lambda: us.submit(body.frames()))
            assert (error.details() or "").startswith(Reason.BUSY)
            for call in calls:
                call.cancel()
            await until(lambda: not hop.submitting.open["silo-04"], "all are gone")
            await us.submit(body.frames())
            assert [r.cohort for r in await running.finished()] == [4]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_at_level_trusted_a_value_beyond_the_bound_names_the_silo(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 1, level=Level.TRUSTED)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            plan = body.manifest.plan
            residues = body.layout.unpack(0, list(body.chunks[0].planes))
            for row, modulus in zip(residues, plan.moduli, strict=True):
                row[5] = (plan.v + 1) % modulus
            chunk = close_chunk(residues, plan.widths, 0, 0)
            frames = [body.first, body_pb2.Frame(chunk=chunk), *body.middle[1:], body.last]
            error = await refusal(lambda: us.submit(frames))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (error.details() or "").startswith("out_of_range: silo-04 sent 1 value")
            await us.submit(body.frames())
            await running.finished()
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_calls_that_are_not_a_silos_are_refused(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 2)
    directory = tmp_path / "f"

    async def go() -> None:
        async with (
            InProcess(directory, without=("silo-04",)) as running,
            peer(directory, "silo-04") as first,
            peer(directory, "silo-04", "shuffler-2") as second,
            peer(directory, "silo-04", "aggregator") as third,
            peer(directory, "shuffler-2", "aggregator") as hop,
            peer(directory, "shuffler-1", "shuffler-2") as prior,
        ):
            manifest = await manifest_at(running)
            body = Body(first, manifest, _update(3))
            opening = services_pb2.RelayFrame(
                open=services_pb2.RelayOpen(hop="silo-04", manifest_digest=manifest.digest)
            )
            prepare = services_pb2.PrepareRequest(federation_digest=federation.digest, round=1)
            wrong_model = services_pb2.GetModelRequest(model_digest=bytes(32))
            model = services_pb2.GetModelRequest(model_digest=manifest.model)
            file = services_pb2.WatchRequest(federation_digest=federation.digest)
            wrong_file = services_pb2.WatchRequest(federation_digest=bytes(32))
            cases: list[tuple[str, Callable[[], Any], Reason]] = [
                ("shuffler-1", lambda: first.shuffler.Prepare(prepare, metadata=SAID), Reason.UNKNOWN_PEER),
                (
                    "shuffler-1",
                    lambda: first.shuffler.Open(services_pb2.OpenRequest(), metadata=SAID),
                    Reason.UNKNOWN_PEER,
                ),
                ("shuffler-1", lambda: first.shuffler.Relay([opening], metadata=SAID), Reason.WRONG_CHAIN),
                ("shuffler-2", lambda: second.shuffler.Relay([opening], metadata=SAID), Reason.WRONG_CHAIN),
                (
                    "shuffler-2",
                    lambda: prior.shuffler.Relay([services_pb2.RelayFrame()], metadata=SAID),
                    Reason.WRONG_SEQUENCE,
                ),
                ("shuffler-2", lambda: second.shuffler.Submit(body.frames(), metadata=SAID), Reason.WRONG_CHAIN),
                ("aggregator", lambda: third.aggregator.Deliver([opening], metadata=SAID), Reason.WRONG_CHAIN),
                (
                    "aggregator",
                    lambda: third.aggregator.GetModel(wrong_model, metadata=SAID).read(),
                    Reason.WRONG_MODEL,
                ),
                (
                    "aggregator",
                    lambda: third.aggregator.Watch(wrong_file, metadata=SAID).read(),
                    Reason.WRONG_FEDERATION,
                ),
                ("aggregator", lambda: hop.aggregator.GetModel(model, metadata=SAID).read(), Reason.UNKNOWN_PEER),
                ("aggregator", lambda: hop.aggregator.Watch(file, metadata=SAID).read(), Reason.UNKNOWN_PEER),
            ]
            for node, call, reason in cases:
                before = rejections(running.nodes[node], reason)
                error = await refusal(call)
                assert (error.details() or "").startswith(f"{reason}: "), f"{node}: {error.details()}"
                assert error.code() is ANSWERS[reason].status
                assert rejections(running.nodes[node], reason) > before
            await first.submit(body.frames())
            assert [r.cohort for r in await running.finished()] == [4]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def _certificate(authority: CertificateAuthority, name: str, anchor: bytes) -> Tls:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Tls(anchor, authority.issue(name, key.public_key()), pem)


def _authority_of(directory: Path) -> CertificateAuthority:
    """The federation's own CA, from its files."""
    authority = CertificateAuthority.__new__(CertificateAuthority)
    key = load_pem_private_key((directory / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    authority._key = key
    authority._certificate = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
    return authority


def test_strangers_are_refused(tmp_path: Path) -> None:
    """A certificate of another CA gets no connection; one of ours that the roster lacks, no hearing."""
    federation = make(tmp_path / "f", 4, 1, ca=True)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            address = federation.shufflers[0].address
            stranger = _certificate(CertificateAuthority("elsewhere"), "silo-04", federation.anchor)
            async with channel(address, "shuffler-1", stranger) as line:
                error = await refusal(lambda: shuffler_stub(line).Submit(body.frames(), metadata=SAID, timeout=10))
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            intruder = _certificate(_authority_of(tmp_path / "f"), "intruder", federation.anchor)
            async with channel(address, "shuffler-1", intruder) as line:
                error = await refusal(lambda: shuffler_stub(line).Submit(body.frames(), metadata=SAID, timeout=10))
                assert error.code() is grpc.StatusCode.PERMISSION_DENIED
                assert (error.details() or "").startswith(Reason.UNKNOWN_PEER)
            assert rejections(running.nodes["shuffler-1"], Reason.UNKNOWN_PEER) > 0
            await us.submit(body.frames())
            assert [r.cohort for r in await running.finished()] == [4]
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_hop_passes_no_gap_on(tmp_path: Path) -> None:
    """Where a chunk is left out the masks still lie: a hop that sent on regardless would give them away."""
    make(tmp_path / "f", 4, 2)
    directory = tmp_path / "f"

    async def go() -> None:
        async with (
            InProcess(directory, without=("silo-04",)) as running,
            peer(directory, "shuffler-1", "shuffler-2") as us,
            peer(directory, "silo-01") as silo,
        ):
            manifest = await manifest_at(running)
            second = shuffler(running, "shuffler-2")
            assert second.core.attempt is not None
            headers = second.core.attempt.headers
            await until(lambda: len(headers) == 3, "hop 2 has the headers")
            named = sorted((h.silo, digest) for digest, h in headers.items())
            cohort = Cohort(manifest.digest, tuple(Participant(*pair) for pair in named))
            cohort = replace(cohort, signature=us.identity.sign(cohort.digest))
            sum_ = Body(silo, manifest, _update(0)).chunks
            frames = [
                services_pb2.RelayFrame(open=services_pb2.RelayOpen(hop="shuffler-1", manifest_digest=manifest.digest)),
                services_pb2.RelayFrame(cohort=write_cohort(cohort)),
                services_pb2.RelayFrame(chunk=sum_[1]),
            ]
            error = await refusal(lambda: us.shuffler.Relay(frames, metadata=us.metadata))
            assert (error.details() or "").startswith(Reason.WRONG_SEQUENCE)
            assert second.passage is not None
            assert second.passage.ready == 0

    run(go())


# --- hops and aggregators that go and come ----------------------------------------------------------------------------


def test_a_hop_that_is_not_there_is_named_and_nothing_is_signed_before_it_is_heard(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 2, release_s=1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("shuffler-2",)) as running:
            await until(lambda: running.aggregator.core.trouble, "a hop is in trouble")
            await until(lambda: running.aggregator.hop_states.get("shuffler-1"), "the other was heard")
            assert running.aggregator.core.phase == "hearing"
            hops = {hop.name: (hop.state, hop.trouble) for hop in running.aggregator.status().hops}
            assert hops["shuffler-1"] == ("ready", "")
            assert hops["shuffler-2"] == ("unreachable", "not reachable (unavailable)")
            running.start("shuffler-2")
            (done,) = await running.finished()
            assert (done.attempts, done.cohort) == (1, 4)
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_hop_that_is_gone_between_rounds_is_named_and_the_next_round_waits_for_it(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 2, rounds=2, release_s=1, attempts=100)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await until(lambda: shuffler(running, "shuffler-2").core.log.round == 2, "round 1 is on record")
            await running.stop("shuffler-2")
            await until(lambda: running.aggregator.core.attempt > 1, "an attempt was given up")
            assert "shuffler-2" in running.aggregator.core.trouble
            running.start("shuffler-2")
            history = await running.finished()
            assert [done.cohort for done in history] == [4, 4]
            assert history[1].attempts > 1
            assert_model(running.aggregator.tensors, [range(4)] * 2, federation.policy)

    run(go())


@pytest.mark.parametrize("hop", ["shuffler-1", "shuffler-2"])
def test_a_hop_that_restarts_with_bodies_on_their_way_costs_at_most_an_attempt(tmp_path: Path, hop: str) -> None:
    """Hop 1 loses bodies that it had counted, and silos send the same integers again; hop 2 goes on as it was."""
    federation = make(tmp_path / "f", 4, 2, rounds=2, deadline_s=3, release_s=1, attempts=10)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running:
            await until(lambda: len(_counted(running)) == 3, "three bodies are in")
            await running.stop(hop)
            running.start(hop)
            if hop == "shuffler-2":  # hop 1 now closes and releases to a hop that knows of nothing
                running.start("silo-04")
                await until(lambda: shuffler(running).core.padded, "hop 1 has passed it on")
            else:
                await manifest_at(running, attempt=2)
                running.start("silo-04")
            history = await running.finished()
            assert [(r.round, r.cohort) for r in history] == [(1, 4), (2, 4)]
            assert (history[0].attempts > 1) is (hop == "shuffler-1")
            assert shuffler(running, hop).core.last_released == 2
            assert_model(running.aggregator.tensors, [range(4)] * 2, federation.policy)

    run(go())


def test_a_hop_that_restarts_between_rounds_goes_on(tmp_path: Path) -> None:
    federation = make(tmp_path / "f", 4, 2, rounds=2, deadline_s=3, release_s=1, attempts=10)

    async def go() -> None:
        async with InProcess(tmp_path / "f") as running:
            await until(lambda: running.aggregator.history, "round 1 is over")
            await running.stop("shuffler-2")
            hop = running.start("shuffler-2")
            assert [r.cohort for r in await running.finished()] == [4, 4]
            assert_model(running.aggregator.tensors, [range(4)] * 2, federation.policy)
            assert {round_ for round_, _, _ in hop.journal.facts("released")} == {1, 2}

    run(go())


def test_an_aggregator_that_restarts_loses_no_round_and_applies_none_twice(tmp_path: Path) -> None:
    """Stopped anywhere, it goes on with the next round, and ends with the model of a run that was never stopped."""
    federation = make(tmp_path / "calm", 4, 2, rounds=4)
    make(tmp_path / "f", 4, 2, rounds=4)

    async def calm() -> bytes:
        async with InProcess(tmp_path / "calm") as running:
            await running.finished()
            return running.aggregator.data

    async def stopped() -> bytes:
        async with InProcess(tmp_path / "f") as running:
            for done in (1, 2):
                await until(partial(_over, running, done), f"round {done} is over")
                await running.stop("aggregator")
                assert isinstance(running.start("aggregator"), AggregatorNode)
            history = await running.finished()
            assert [(r.round, r.cohort) for r in history] == [(t, 4) for t in range(1, 5)]
            assert_model(running.aggregator.tensors, [range(4)] * 4, federation.policy)
            return running.aggregator.data

    assert run(stopped()) == run(calm())
    journal = Journal(tmp_path / "f" / "aggregator" / "state" / "journal.sqlite")
    records = list(read_log(journal))
    journal.close()
    assert [(r.round, str(r.outcome), len(r.silos)) for r in records[1:]] == [(t, "applied", 4) for t in range(1, 5)]


# --- disks ------------------------------------------------------------------------------------------------------------


def test_a_full_disk_at_hop_1_gives_no_receipt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One silo's spool does not fit: it hears so and tries again; the log names the file; the others do not notice."""
    federation = make(tmp_path / "f", 4, 1)
    full = {"silo-04": 2}
    make_spool = Spool.__init__

    def on_a_full_disk(self: Spool, *arguments: Any) -> None:
        make_spool(self, *arguments)
        if full.get(self.header.silo, 0) > 0:
            full[self.header.silo] -= 1
            self.path.symlink_to("/dev/full")

    monkeypatch.setattr(Spool, "__init__", on_a_full_disk)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            body = Body(us, await manifest_at(running), _update(3))
            error = await refusal(lambda: us.submit(body.frames()))
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "cannot write" in (error.details() or "")
            assert f"No space left on device: '{tmp_path}/f/shuffler-1/state/spool/" in caplog.text
            assert "silo-04" not in _counted(running)
            assert not [f for f in leftovers(tmp_path / "f") if f.startswith(body.header.digest.hex())]
            assert not shuffler(running).submitting.open["silo-04"]
            running.start("silo-04")  # fails once more, and then gets through
            assert [r.cohort for r in await running.finished()] == [4]
            assert full == {"silo-04": 0}
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)

    run(go())


def test_a_release_that_cannot_be_written_down_does_not_happen_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pad is in the journal first, or nothing leaves the hop; when the disk is mended, the attempt goes on."""
    monkeypatch.setattr("silomix.runtime.nodes.node.RETRY_S", 0.05)
    federation = make(tmp_path / "f", 4, 1)

    async def go() -> None:
        async with InProcess(tmp_path / "f", without=("silo-04",)) as running, peer(tmp_path / "f", "silo-04") as us:
            hop = shuffler(running)
            put = hop.journal.put
            failed: list[int] = []

            def full(kind: str, round_: int, key: str, value: bytes) -> None:
                if kind == "padded" and len(failed) < 5:
                    assert hop.passage is not None
                    failed.append(hop.passage.ready)
                    raise JournalError("no space left on the device")
                put(kind, round_, key, value)

            hop.journal.put = full  # type: ignore[method-assign]
            body = Body(us, await manifest_at(running), _update(3))
            await until(lambda: len(_counted(running)) == 3, "the others are in")
            error = await refusal(lambda: us.submit(body.frames()))  # it does not come back: the hop tries by itself
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert "cannot write" in (error.details() or "")
            (done,) = await running.finished()
            assert failed == [0] * 5  # nothing was ready to leave while it could not be written down
            assert (done.attempts, done.cohort) == (1, 4)
            assert_model(running.aggregator.tensors, [range(4)], federation.policy)
            assert_model(model_of(tmp_path / "f"), [range(4)], federation.policy)

    run(go())
