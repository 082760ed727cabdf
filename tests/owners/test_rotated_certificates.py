"""Certificates without a CA: each node vouches for itself, changes its own, and nobody speaks in another's name."""

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from tests.nodes.federations import make, manifest_at, until
from tests.owners.hospitals import Hospitals, run
from tests.tools import root

from silomix.runtime.config.authority import blank, private_pem, usage
from silomix.runtime.config.load import identity_of, load_node
from silomix.runtime.config.owners import rotate
from silomix.runtime.config.owners.pins import load_pins, read_pin, write_pin
from silomix.runtime.config.owners.rotate import finish, prepare, take
from silomix.runtime.config.owners.selfsigned import der, form_problem, pem, self_signed
from silomix.runtime.core.errors import PeerFault, Reason, UserError
from silomix.runtime.core.protocol.owners import Pin
from silomix.runtime.local import InProcess
from silomix.runtime.net.meeting import OnlyPins, meet
from silomix.runtime.net.transport import Tls, channel, tls_of
from silomix.runtime.net.version import SAID
from silomix.runtime.nodes.changes import renewal
from silomix.v1 import services_pb2, services_pb2_grpc

NAME = "silo-01"


def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def built(
    signer: ec.EllipticCurvePrivateKey,
    *extensions: tuple[x509.ExtensionType, bool],
    subject: str = NAME,
    issuer: str = NAME,
    public: ec.EllipticCurvePrivateKey | None = None,
) -> x509.Certificate:
    """A certificate with what a test wants in it."""
    shown = (public or signer).public_key()
    builder = blank(named(subject), named(issuer), shown, datetime.now(UTC), 10)
    for value, critical in extensions:
        builder = builder.add_extension(value, critical)
    return builder.sign(signer, SHA256())


NO_CA = (x509.BasicConstraints(ca=False, path_length=None), True)
HANDSHAKES = (usage(sign_certificates=False), True)
FOR_NAME = (x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)


@pytest.mark.parametrize(
    ("certificate", "says"),
    [
        (lambda: built(key(), NO_CA, FOR_NAME), "no KeyUsage"),
        (lambda: built(key(), HANDSHAKES, FOR_NAME), "no BasicConstraints"),
        (lambda: built(key(), NO_CA, HANDSHAKES), "no SubjectAlternativeName"),
        (lambda: built(key(), NO_CA, (usage(sign_certificates=True), True), FOR_NAME), "another KeyUsage"),
        (lambda: built(key(), NO_CA, (HANDSHAKES[0], False), FOR_NAME), "another KeyUsage"),
        (
            lambda: built(key(), (x509.BasicConstraints(True, 0), True), HANDSHAKES, FOR_NAME),
            "another BasicConstraints",
        ),
        (
            lambda: built(key(), NO_CA, HANDSHAKES, (x509.SubjectAlternativeName([x509.DNSName("silo-02")]), False)),
            "another SubjectAlternativeName",
        ),
        (lambda: built(key(), NO_CA, HANDSHAKES, FOR_NAME, subject="silo-02"), "is for CN=silo-02"),
        (lambda: built(key(), NO_CA, HANDSHAKES, FOR_NAME, public=key()), "not signed by its own key"),
        (lambda: built(key(), NO_CA, HANDSHAKES, FOR_NAME, issuer="silo-02"), "not signed by its own key"),
    ],
)
def test_a_certificate_that_could_vouch_for_others_is_not_pinned(
    certificate: Callable[[], x509.Certificate], says: str
) -> None:
    assert not form_problem(self_signed(NAME, key()).public_bytes(Encoding.DER), NAME)
    assert says in form_problem(certificate().public_bytes(Encoding.DER), NAME)


def test_bytes_that_are_no_certificate_are_not_pinned() -> None:
    good = self_signed(NAME, key()).public_bytes(Encoding.DER)
    assert "cannot be read" in form_problem(b"", NAME)
    assert "cannot be read" in form_problem(good + b"\0", NAME)
    assert "2048 are the most" in form_problem(good + bytes(2048), NAME)


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        ("a003020102", "a003020105"),
        ("2a8648ce3d030107", "2a8648ce3d030108"),
        ("0603551d0f", "0603551d13"),
        (f"82{len(NAME):02x}{NAME.encode().hex()}", f"a3{len(NAME):02x}{NAME.encode().hex()}"),
        ("5504030c", "55040303"),
    ],
    ids=[
        "a version that there is not",
        "a curve that nobody knows",
        "an extension twice",
        "a name of a kind that nobody knows",
        "a name that is no text",
    ],
)
def test_a_certificate_that_no_reader_takes_is_refused_and_ends_nobody(found: str, changed: str) -> None:
    good = self_signed(NAME, key()).public_bytes(Encoding.DER)
    forged = good.replace(bytes.fromhex(found), bytes.fromhex(changed))
    assert forged != good
    assert form_problem(forged, NAME) == "cannot be read"


def rewritten(change: Callable[[bytes], bytes], algorithm: str = "300a06082a8648ce3d040302") -> bytes:
    """A certificate whose content was changed before it was signed, by whoever has the key."""
    private = key()
    body = change(self_signed(NAME, private).tbs_certificate_bytes[4:])
    content = b"\x30\x82" + len(body).to_bytes(2, "big") + body
    signature = private.sign(content, ec.ECDSA(SHA256()))
    rest = content + bytes.fromhex(algorithm) + b"\x03" + bytes([len(signature) + 1]) + b"\0" + signature
    return b"\x30\x82" + len(rest).to_bytes(2, "big") + rest


def swap(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda body: body.replace(bytes.fromhex(old), bytes.fromhex(new))


def serial(number: str) -> Callable[[bytes], bytes]:
    """Another serial number, which stands behind the version."""
    return lambda body: body[:5] + bytes([2, len(number) // 2]) + bytes.fromhex(number) + body[7 + body[6] :]


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
@pytest.mark.parametrize(
    "change",
    [swap("5504030c", "55040313"), swap("5504030c", "55040316"), serial("80"), serial("00")],
    ids=["a printable name", "a name in ASCII", "a negative number", "no number"],
)
def test_a_certificate_that_is_written_in_another_way_is_not_pinned(change: Callable[[bytes], bytes]) -> None:
    """TLS, which has a reader of its own, takes no certificate that stands behind one which it cannot take."""
    assert form_problem(rewritten(lambda body: body), NAME) == ""
    assert "is not written as" in form_problem(rewritten(change), NAME)


async def test_tls_would_know_nobody_who_is_behind_a_certificate_of_version_1() -> None:
    """Two readers of one file: what ours took, and let others have, was the end of all connections."""
    private, odd = key(), pem(rewritten(swap("a003020102", "")))
    shown = self_signed(NAME, private).public_bytes(Encoding.PEM)
    for roots, opens in ((shown, True), (shown + odd, True), (odd + shown, False)):
        server = grpc.aio.server()
        credentials = grpc.ssl_server_credentials([(private_pem(private), shown)], roots, True)
        if opens:
            assert server.add_secure_port("127.0.0.1:0", credentials)
        else:
            with pytest.raises(RuntimeError):
                server.add_secure_port("127.0.0.1:0", credentials)
        await server.stop(None)


def wrapped(tag: int, *parts: bytes) -> bytes:
    """Bytes as DER has them: what they are, how many, and they themselves."""
    content = b"".join(parts)
    size = len(content)
    length = (
        bytes([size]) if size < 0x80 else b"\x81" + bytes([size]) if size < 0x100 else b"\x82" + size.to_bytes(2, "big")
    )
    return bytes([tag]) + length + content


def of_version_1() -> bytes:
    """A certificate with extensions that says of itself that it is of version 1: Python's reader does not mind."""
    signer, version = key(), bytes.fromhex("a003020102")
    good = self_signed(NAME, signer).tbs_certificate_bytes
    said = wrapped(0x30, good[good.index(version) + len(version) :])
    by_ecdsa = bytes.fromhex("300a06082a8648ce3d040302")
    return wrapped(0x30, said, by_ecdsa, wrapped(0x03, b"\0", signer.sign(said, ec.ECDSA(SHA256()))))


def test_a_certificate_that_hides_those_behind_it_from_grpc_is_not_pinned() -> None:
    """A trust store has all of them, one behind the other, and gRPC reads on to the first that it cannot read."""
    forged = of_version_1()
    read = x509.load_der_x509_certificate(forged)
    assert len(read.extensions) == 4
    read.verify_directly_issued_by(read)
    assert form_problem(forged, NAME) == "has another version than 3"


@pytest.mark.parametrize(
    ("oid", "value"),
    [("2.5.29.17", "3002a300"), ("2.5.29.18", "3004a5028100"), ("1.3.6.1.5.5.7.1.24", "3003020163")],
    ids=["a name of a kind that is not read", "an issuer's", "a feature that nobody knows"],
)
def test_a_certificate_with_what_its_reader_has_other_words_for_is_refused_and_ends_nobody(
    oid: str, value: str
) -> None:
    odd = x509.UnrecognizedExtension(x509.ObjectIdentifier(oid), bytes.fromhex(value))
    made_ = built(key(), NO_CA, HANDSHAKES, (odd, False)).public_bytes(Encoding.DER)
    assert form_problem(made_, NAME) == "cannot be read"


def test_a_pin_of_a_certificate_that_signs_others_is_refused(hospitals: Hospitals) -> None:
    """A member that means harm signs its pin well enough; the certificate in it is what gives it away."""
    config = load_node(hospitals.node("silo-02"))
    pins = load_pins(config.federation, config.agreement)
    names = (x509.SubjectAlternativeName([x509.DNSName("silo-02")]), False)
    bad = built(key(), (x509.BasicConstraints(True, None), True), names, subject="silo-02", issuer="silo-02")
    pin = Pin("silo-02", 2, bad.public_bytes(Encoding.DER)).signed(identity_of(config))
    with pytest.raises(PeerFault, match="the certificate that silo-02 pins has another BasicConstraints") as caught:
        pins.take(pin)
    assert caught.value.reason is Reason.UNKNOWN_PEER


def test_rotating_is_counted_and_an_older_pin_is_never_taken_again(hospitals: Hospitals, tmp_path: Path) -> None:
    home, other = hospitals.node("silo-02"), hospitals.node("silo-03")
    before = tls_of(load_node(home))
    assert before is not None
    announced = read_pin(prepare(home))
    assert (announced.counter, announced.current) == (2, der(before.certificate))
    assert announced.next == der((home / "next.pem").read_bytes())
    (tmp_path / "old").mkdir()
    first = write_pin(announced, tmp_path / "old")
    assert take(other, first)[1]
    done = read_pin(finish(home))
    assert (done.counter, done.current, done.next) == (3, announced.next, b"")
    assert not (home / "next.key").exists()
    load_node(home)
    assert take(other, write_pin(done, tmp_path))[1]
    for old in (hospitals.home("hospital-c") / "silo-02.pin", first):
        assert not take(other, old)[1]
    found = tls_of(load_node(other))
    assert found is not None
    assert found.pins is not None
    assert found.pins.known_by("silo-02", done.current)
    assert not found.pins.known_by("silo-02", announced.current)


class Killed(Exception):  # noqa: N818 - what happened
    """The process ends here."""


def test_a_change_over_that_is_killed_anywhere_goes_on_when_it_is_run_again(
    hospitals: Hospitals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before each of its writes, and before it clears up: key, certificate, pin, next.key, next.pem."""
    home, steps, left = hospitals.node("silo-02"), 0, 0
    real = {name: getattr(rotate, name) for name in ("write_atomically", "write_pin", "_clear")}

    def dying(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named_: Any) -> Any:
            nonlocal left, steps
            if left == 0:
                raise Killed
            left, steps = left - 1, steps + 1
            return real[name](*arguments, **named_)

        return call

    for survived in range(5):
        prepare(home)
        announced = der((home / "next.pem").read_bytes())
        left = survived
        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(rotate, name, dying(name))
            if survived < 4:
                with pytest.raises(Killed):
                    finish(home)
            else:
                finish(home)
        if survived == 1:  # the key alone: a node that is started now says what to do
            assert run("check", "--config", home, "--offline") == 1
            assert "run `silomix rotate --finish` again" in " ".join(capsys.readouterr().out.split())
        if survived < 4:
            assert read_pin(finish(home)).current == announced
        assert load_node(home).certificate is not None
        assert der((home / "tls.pem").read_bytes()) == announced
        assert not (home / "next.key").exists()
    assert steps == 1 + 2 + 3 + 4

    # Killed with the certificate in place and the pin not yet: another one can be announced all the same.
    prepare(home)
    with monkeypatch.context() as patch:
        left = 2
        for name in real:
            patch.setattr(rotate, name, dying(name))
        with pytest.raises(Killed):
            finish(home)
    shown = der((home / "tls.pem").read_bytes())
    assert read_pin(prepare(home)).current == shown
    load_node(home)


def test_a_key_that_is_not_the_announced_certificates_never_takes_over(hospitals: Hospitals) -> None:
    home = hospitals.node("silo-02")
    before = (home / "tls.key").read_bytes()
    prepare(home)
    (home / "next.key").write_bytes(private_pem(key()))
    with pytest.raises(UserError, match="does not belong to"):
        finish(home)
    assert (home / "tls.key").read_bytes() == before


def test_rotate_on_the_command_line(hospitals: Hospitals, capsys: pytest.CaptureFixture[str]) -> None:
    home = hospitals.node("silo-02")
    before = (home / "tls.pem").read_bytes()
    assert run("rotate", "--config", home, "--finish") == 2
    assert "run `silomix rotate` first" in capsys.readouterr().err
    assert run("rotate", "--config", home, "--now") == 0
    assert (home / "tls.pem").read_bytes() != before
    pin = home / "state" / "pins" / "silo-02.pin"
    assert run("rotate", "--config", hospitals.node("silo-03"), "--take", pin) == 0
    assert "silo-02 is known by certificate number 3" in capsys.readouterr().out
    pin.write_text(pin.read_text().replace("counter = 3", "counter = 4"))
    assert run("rotate", "--config", hospitals.node("silo-03"), "--take", pin) == 2
    assert "the signature of silo-02 does not verify" in capsys.readouterr().err


def test_root_rotates_for_the_user_that_runs_the_node(hospitals: Hospitals) -> None:
    """A key that root owned would be one that the node cannot read."""
    root()
    home = hospitals.node("silo-02")
    for path in (home, *home.rglob("*")):
        os.chown(path, 12345, 12346)
    assert run("rotate", "--config", home, "--now") == 0
    pins = home / "state" / "pins"
    for path in (home / "tls.key", home / "tls.pem", pins.parent, pins, pins / "silo-02.pin"):
        assert (path.stat().st_uid, path.stat().st_gid) == (12345, 12346), path


async def status(directory: Path, tls: Tls) -> grpc.StatusCode:
    """Ask the aggregator for its status with some certificate; return how that ends."""
    federation = load_node(directory / "silo-01").federation
    async with channel(federation.aggregator.address, "aggregator", tls) as line:
        return await asked(line)


async def asked(line: grpc.aio.Channel) -> grpc.StatusCode:
    stub = services_pb2_grpc.AggregatorServiceStub(line)  # type: ignore[no-untyped-call]
    try:
        await stub.GetStatus(services_pb2.GetStatusRequest(), timeout=20)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_certificates_on_a_running_federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One federation that waits for a silo: who gets in with which certificate, while they change."""
    monkeypatch.setattr(renewal, "LOOK_S", 0.1)
    monkeypatch.setattr(renewal, "MEET_S", 1.0)
    home = tmp_path / "f"
    federation = make(home, 4, 1, deadline_s=600)
    ours = tls_of(load_node(home / "silo-04"))
    assert ours is not None
    async with InProcess(home, without=("silo-04",)) as running:
        await manifest_at(running)
        assert await status(home, ours) is grpc.StatusCode.OK

        # A certificate that one member signs for another's name: the handshake ends, and were it let through by some
        # other TLS library, the pin would not fit.
        member = load_pem_private_key(ours.key, None)
        assert isinstance(member, ec.EllipticCurvePrivateKey)
        stolen = key()
        names = (x509.SubjectAlternativeName([x509.DNSName("silo-03")]), False)
        forged = built(member, NO_CA, HANDSHAKES, names, subject="silo-03", issuer="silo-04", public=stolen)
        pem = forged.public_bytes(Encoding.PEM)
        for chain in (pem, pem + ours.certificate):
            found = Tls(ours.anchor, chain, private_pem(stolen), ours.pins)
            assert await status(home, found) is grpc.StatusCode.UNAVAILABLE
        at = running.nodes["aggregator"].tls
        assert at is not None
        with pytest.raises(PeerFault, match="the certificate of silo-03 is not the one"):
            at.check("silo-03", {"x509_pem_cert": [pem]})

        # A member's own certificate opens nothing in another's name, and a client trusts the one whom it dials alone.
        elsewhere = replace(ours, pins=None, anchor=ours.roots("silo-01"))
        assert await status(home, elsewhere) is grpc.StatusCode.UNAVAILABLE

        # silo-04 changes its certificate. An open connection with the old one is refused on its next call.
        line = channel(federation.aggregator.address, "aggregator", ours)
        assert await asked(line) is grpc.StatusCode.OK
        stub = services_pb2_grpc.AggregatorServiceStub(line)  # type: ignore[no-untyped-call]
        watch = stub.Watch(services_pb2.WatchRequest(federation_digest=federation.digest), metadata=SAID)
        assert (await anext(aiter(watch))).records  # an open call, which would go on for as long as the federation does
        prepare(home / "silo-04")
        pin = finish(home / "silo-04")
        fresh = tls_of(load_node(home / "silo-04"))
        assert fresh is not None
        assert await status(home, fresh) is grpc.StatusCode.UNAVAILABLE  # nobody has heard of it yet
        take(home / "aggregator", pin)  # from disk, at one member
        await until(lambda: at.version > 0, "the aggregator has seen the file")
        assert await asked(line) is grpc.StatusCode.PERMISSION_DENIED
        with pytest.raises(grpc.aio.AioRpcError, match="no longer known by the certificate"):  # an open one is cut off
            _ = [news async for news in watch]
        await line.close(0)
        assert await status(home, ours) is grpc.StatusCode.UNAVAILABLE
        assert await status(home, fresh) is grpc.StatusCode.OK

        # The others hear of it from the aggregator, and keep it.
        for name in ("shuffler-1", "silo-01"):
            kept = home / name / "state" / "pins" / "silo-04.pin"
            await until(kept.is_file, f"{name} has heard of it")
            assert read_pin(kept).counter == 3

        # The aggregator changes its own, and shows it without a restart.
        prepare(home / "aggregator")
        await until(lambda: running.nodes["silo-01"].renewal.knows("aggregator") == 2, "silo-01 knows the next one")
        await until(lambda: running.nodes["shuffler-1"].renewal.knows("aggregator") == 2, "shuffler-1 knows it")
        finish(home / "aggregator")
        await until(lambda: at.certificate == (home / "aggregator" / "tls.pem").read_bytes(), "it is in use")
        newest = tls_of(load_node(home / "silo-04"))
        assert newest is not None
        assert newest.pins is not None
        said = await meet(
            load_node(home / "silo-04"), "aggregator", _knowing(newest, home), OnlyPins(tuple(newest.pins)), 20
        )
        assert {p.name: p.counter for p in said.pins}["aggregator"] == 3
        assert not any(task.done() for task in running.tasks.values())


def _knowing(tls: Tls, home: Path) -> Tls:
    """The same, having been shown the aggregator's newest pin."""
    assert tls.pins is not None
    tls.pins.take(read_pin(home / "aggregator" / "state" / "pins" / "aggregator.pin"))
    tls.anchor = tls.pins.roots()
    return tls
