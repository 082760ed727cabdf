"""The test vectors of protocol version 1.

    python -m tests.vectors.generate      writes tests/vectors/v1/*.json anew

The numbers come from `reference.py`, never from the product. Another implementation that reproduces these files speaks
version 1. They change only with the protocol's version, so a difference is a bug in whoever differs: `tests/core`
compares both the product and the reference with what is committed.

Bytes are hex, floats are Python's `float.hex` (or nan, inf, -inf). Each file lists under `good` what must work, and
under `bad` what must be refused, with the reason of docs/protocol.md, section 8.
"""

import hashlib
import json
from math import isfinite
from pathlib import Path
from random import Random

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from tests.vectors.reference import (
    Json,
    Part,
    chunk_digest,
    cohort_digest,
    digest,
    fence_digest,
    frame,
    header_digest,
    hpke_seal,
    info,
    largest,
    manifest_digest,
    mask,
    moduli_of,
    pack,
    pad_info,
    plan_digest,
    quantise,
    ready_digest,
    record_digest,
    refuse,
    root,
    round_key_digest,
    trail_digest,
    width_of,
)

HERE = Path(__file__).parent / "v1"

CONTEXT: Json = {
    "manifest": hashlib.sha256(b"manifest").hexdigest(),
    "layer": 1,
    "chunk_parameters": 64,
    "direction": "upload",
}
"""A context; the others differ from it in one field."""

OTHER: Json = {
    "manifest": hashlib.sha256(b"another manifest").hexdigest(),
    "layer": 0,
    "chunk_parameters": 65,
    "direction": "download",
}
"""Another value for each field."""


def digest_vectors() -> Json:
    cases: list[tuple[str, list[Part]]] = [
        ("seed", []),
        ("seed", [b""]),
        ("seed", [""]),
        ("seed", [0]),
        ("seed", [b"0"]),
        ("seed", ["0"]),
        ("seed", [b"ab", b"c"]),
        ("seed", [b"a", b"bc"]),
        ("seed", [b"abc"]),
        ("other", [b"abc"]),
        ("chunk", [-1, 2**64, 10**30, "Schlüssel \N{SNOWMAN}", bytes(range(256))]),
        ("body", [1, digest("chunk", 0, 0, bytes(32), bytes(range(32)))]),
    ]
    tags = {bytes: "b", str: "s", int: "i"}
    return {
        "good": [
            {
                "domain": domain,
                "parts": [[tags[type(p)], p.hex() if isinstance(p, bytes) else p] for p in parts],
                "frame": frame(domain, *parts).hex(),
                "digest": digest(domain, *parts).hex(),
            }
            for domain, parts in cases
        ],
        "bad": [],
    }


def policy(
    n_max: int,
    r: int,
    encoding: str = "counts",
    level: str = "semi-honest",
    weight_levels: int = 1,
    headroom: int = 0,
    quantiser: str = "decimal",
) -> Json:
    return dict(locals())


POLICIES = [
    policy(10, 4),
    policy(10, 4, "unary"),
    policy(10, 4, "first-primes"),
    policy(10, 4, level="malicious"),
    policy(10, 4, "unary", "malicious"),
    policy(3, 1, level="trusted"),
    policy(1, 1),
    policy(5, 2, level="malicious"),
    policy(100, 4, weight_levels=10),
    policy(10, 4, headroom=3),
    policy(10, 1, quantiser="int8"),
    policy(10, 8),
    policy(20, 8, level="malicious"),
    policy(1000, 8, "first-primes"),
    policy(10000, 16, "first-primes"),
    policy(100, 12, "unary"),
]
INFEASIBLE = [
    policy(0, 4),
    policy(10, 0),
    policy(10, 4, weight_levels=0),
    policy(10, 4, headroom=-1),
    policy(10, 19),
    policy(10, 16, weight_levels=462),
    policy(10, 4, headroom=83),
]


def plan_vectors() -> Json:
    good = []
    for p in POLICIES:
        moduli = moduli_of(p)
        assert moduli is not None
        widths = [width_of(m) for m in moduli]
        good.append({**p, "moduli": moduli, "widths": widths, "digest": plan_digest(p, moduli).hex()})
    assert not any(moduli_of(p) for p in INFEASIBLE)
    return {"good": good, "bad": [{**p, "reason": "plan_infeasible"} for p in INFEASIBLE]}


def packing_vectors() -> Json:
    rng = Random(1)
    good: list[Json] = []
    bad: list[Json] = []
    moduli = [2, 3, 5, 8, 13, 53, 64, 127, 129, 256, 257, 511, 512, 1000, 2048, 4093, 5000, 16384, 32767, 32768]
    moduli += [32769, 65535, 65536, 65537, 200_000, 262_144, 524_287, 1_048_573, 1_048_576]
    for m in moduli:
        w = width_of(m)
        for n in (0, 1, 7, 8, 9, 31, 65):
            residues = [rng.choice((0, 1, m - 1, rng.randrange(m))) for _ in range(n)]
            good.append({"modulus": m, "residues": residues, "plane": pack(residues, w).hex()})
        residues = [rng.randrange(m) for _ in range(19)]
        plane = pack(residues, w)
        planes = [plane[:-1], plane + b"\x00", b"", plane[: 19 * w // 8]]
        planes += [with_bits(plane, (2, 1 << bit)) for bit in range(3, 8)]  # behind residue 18, in the first slice
        planes += [with_bits(plane, (3 * w - 1, 0x80)), with_bits(plane, (3 * (w // 2) + 2, 8), (3 * w - 1, 0xF8))]
        if m < 1 << w:  # otherwise nothing in the plane can be out of range
            top = (1 << w) - 1
            planes += [pack([*residues[:i], x, *residues[i + 1 :]], w) for i in (0, 11, 18) for x in (m, top)]
            planes.append(pack([*residues[:8], m, *residues[9:18], top], w))  # the first by position is named
            planes.append(with_bits(pack([top] * 19, w), (3 * w - 1, 8)))  # padding comes before range
        for p in planes:
            found = refuse(p, m, 19)
            assert found is not None
            bad.append({"modulus": m, "n": 19, "plane": p.hex(), "reason": found[0], "offset": found[1]})
    good.append({"modulus": 512, "residues": [1, 2, 510], "plane": "010604040404040404"})
    return {"good": good, "bad": bad}


def with_bits(plane: bytes, *places: tuple[int, int]) -> bytes:
    """Set bits in a plane: (byte, bits) each."""
    out = bytearray(plane)
    for at, bits in places:
        out[at] |= bits
    return bytes(out)


def root_vectors() -> Json:
    rng = Random(3)
    plane = pack([1, 2, 510], 9)
    bodies: list[list[tuple[int, list[bytes]]]] = [
        [],
        [(0, [plane, plane])],
        [(0, [b""])],
        [(0, [plane]), (64, [plane]), (128, [plane[:1]])],
        [(0, [plane, plane[:1]]), (7, [plane + plane[:1]])],  # which byte is in which plane counts
        [(2**40, [rng.randbytes(size) for size in (1, 63, 64, 65, 1023, 1024, 1025, 2049)])],  # BLAKE3's own borders
    ]
    good = []
    for body in bodies:
        digests = [chunk_digest(i, first, planes) for i, (first, planes) in enumerate(body)]
        chunks = [{"first": first, "planes": [p.hex() for p in planes]} for first, planes in body]
        good.append({"chunks": chunks, "digests": [d.hex() for d in digests], "root": root(digests).hex()})
    return {"good": good, "bad": []}


def quantise_vectors() -> Json:
    rng = Random(2)
    good: list[Json] = []
    for r, bound, weight_levels, weight in (
        (1, 1.0, 1, 1),
        (4, 1.0, 1, 1),
        (4, 0.037, 1, 1),
        (4, 9999.0, 1, 1),  # a step of one: the halves are exact ties
        (4, 9999.0, 100, 7),
        (8, 2.0**-20, 1, 1),
        (12, 3.0, 4000, 4000),
        (16, 1.0, 1, 1),  # float64 has no 10^16 - 1: the bound itself is clipped by one
        (18, 0.1, 4, 4),
    ):
        v = largest(r, "decimal")
        step = bound / v
        values = [0.0, -0.0, bound, -bound, bound * (1 + 2**-52), -bound * (1 + 2**-52), 5e-324, -1e-310]
        values += [1.7976931348623157e308, -1e300, 1e30]
        values += [k * step / 2 for k in (1, -1, 3, -3, 5, 7, 2 * v - 1, 2 * v + 1, -2 * v - 1)]
        values += [rng.uniform(-1.1, 1.1) * bound for _ in range(12)]
        # Moduli by hand, so that no search stands between the value and its residues.
        moduli = [1048576, 1048575, 1048573, 1048571, 1048567] if r > 8 else [512, 511, 509, 503]
        results = [quantise(p, bound, v) for p in values]
        good.append(
            {
                "r": r,
                "bound": bound.hex(),
                "weight_levels": weight_levels,
                "weight": weight,
                "moduli": moduli,
                "values": [p.hex() for p in values],
                "integers": [weight * x for x, _ in results],
                "clipped": sum(clipped for _, clipped in results),
                "residues": [[weight * x % m for x, _ in results] for m in moduli],
            }
        )
    case = {
        "r": 4,
        "bound": (1.0).hex(),
        "weight_levels": 10,
        "weight": 1,
        "moduli": [512, 511],
        "values": [(0.5).hex()],
    }
    bad = [{**case, "values": [(0.5).hex(), p], "reason": "not_finite", "index": 1} for p in ("nan", "inf", "-inf")]
    bounds = ["nan", "inf", "-inf", (0.0).hex(), (-0.0).hex(), (-1.0).hex(), (5e-324).hex(), (1e-305).hex()]
    assert all(b <= 0 or not isfinite(b) or 9999 / b == float("inf") for b in map(float.fromhex, bounds))
    bad += [{**case, "bound": b, "reason": "bad_bound"} for b in bounds]
    bad += [{**case, "weight": w, "reason": "bad_weight"} for w in (0, -1, 11)]
    return {"good": good, "bad": bad}


MASK_MODULI = [
    [512, 511],
    [503, 509],
    [2, 3, 5, 7, 11],
    [5, 7, 8, 9, 11, 13],
    [17, 257, 129],  # nearly half of the values are redrawn
    [65537, 17, 129, 257],  # narrow planes behind a wide one
    [65536, 32769, 32767],
    [1048573, 524289],
    [256],
    [3],
]


def mask_vectors() -> Json:
    good: list[Json] = []

    def add(seed: bytes, context: Json, moduli: list[int], index: int, length: int) -> None:
        planes = mask(seed, info(context), moduli, index, length)
        packed = [pack(plane, width_of(m)).hex() for plane, m in zip(planes, moduli, strict=True)]
        good.append(
            {
                "seed": seed.hex(),
                "context": context,
                "info": info(context).hex(),
                "moduli": moduli,
                "index": index,
                "length": length,
                "planes": packed,
            }
        )

    for i, moduli in enumerate(MASK_MODULI):
        seed = hashlib.sha256(f"seed {i}".encode()).digest()
        for index, length in ((0, 64), (1, 64), (2, 13), (171, 1), (2**32, 9), (0, 0)):
            add(seed, CONTEXT, moduli, index, length)
    long = {**CONTEXT, "chunk_parameters": 10_000}
    add(hashlib.sha256(b"long").digest(), long, [3, 2], 1, 8203)  # thousands of redraws
    for name, value in OTHER.items():
        add(hashlib.sha256(b"seed 0").digest(), {**CONTEXT, name: value}, [512, 511], 1, 13)
    return {"good": good, "bad": []}


_P = 2**255 - 19
_ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
SMALL_ORDER = [
    (u | high).to_bytes(32, "little") for u in (0, 1, *_ORDER_8, _P - 1, _P, _P + 1) for high in (0, 1 << 255)
]
"""Points that make a shared secret which all know, in every encoding: the highest bit counts for nothing."""


def seal_vectors() -> Json:
    seed, private, ephemeral, stranger = (
        hashlib.sha256(s).digest() for s in (b"seed", b"private", b"ephemeral", b"stranger")
    )
    public = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    sealed = hpke_seal(seed, ephemeral, public, info(CONTEXT))
    case = {"private": private.hex(), "sealed": sealed.hex(), "context": CONTEXT}
    good = [
        {
            "private": private.hex(),
            "public": public.hex(),
            "ephemeral": ephemeral.hex(),
            "sealed": hpke_seal(seed, ephemeral, public, info(context)).hex(),
            "context": context,
            "seed": seed.hex(),
            "commitment": digest("seed", info(context), seed).hex(),
        }
        for context in (CONTEXT, *({**CONTEXT, name: value} for name, value in OTHER.items()))
    ]
    bad: list[Json] = [{**case, "sealed": s.hex(), "reason": "wrong_length"} for s in (b"", sealed[:-1], sealed + b"x")]
    for at in (0, 30, 32, 40, 63, 64, 79):  # the encapsulated key, the seed, the tag
        changed = sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]
        bad.append({**case, "sealed": changed.hex(), "reason": "seal_broken"})
    bad += [{**case, "sealed": (point + sealed[32:]).hex(), "reason": "seal_broken"} for point in SMALL_ORDER]
    bad += [{**case, "context": {**CONTEXT, name: value}, "reason": "seal_broken"} for name, value in OTHER.items()]
    bad.append({**case, "private": stranger.hex(), "reason": "seal_broken"})
    return {"good": good, "bad": bad}


def message_vectors() -> Json:
    """What the signatures of section 5 cover."""

    def name(*what: object) -> str:
        return hashlib.sha256(repr(what).encode()).hexdigest()

    federation, chain, silos = name("federation"), ["hop-1", "hop-2"], ["silo-1", "silo-2", "silo-3"]

    def key(hop: str, silo: str) -> Json:
        return {
            "hop": hop,
            "silo": silo,
            "round": 3,
            "attempt": 2,
            "public_key": name(hop, silo),
            "last_released": 2,
            "signature": 2 * name("signature", hop, silo),
        }

    earlier = name("attempt 1")
    fence = {"hop": "hop-3", "round": 3, "attempt": 1, "manifest": earlier, "signature": 2 * name("fence")}
    moduli = moduli_of(POLICIES[0])
    manifest: Json = {
        "federation": federation,
        "head": name("head"),
        "applied": 1,
        "round": 3,
        "attempt": 2,
        "earlier": [earlier],
        "model": name("model"),
        "state": name("state"),
        "schema": [
            {"name": "a", "dtype": "F32", "kind": "parameter", "shape": [5, 2]},
            {"name": "b", "dtype": "F32", "kind": "buffer", "shape": [3]},
        ],
        "plan": POLICIES[0],
        "moduli": moduli,
        "bounds": [(1.0).hex(), (0.25).hex()],
        "update": "delta",
        "granularity": "sum",
        "chain": chain,
        "hop_keys": [key(hop, silo) for hop in chain for silo in silos],
        "aggregator_keys": [key("aggregator", silo) for silo in silos],
        "group_size": 0,
        "invited": silos,
        "minimum_cohort": 3,
        "chunk_parameters": 64,
        "deadline_s": 600,
        "bound": {
            "manifest": earlier,
            "participants": [{"silo": silo, "header": name("earlier header", silo)} for silo in silos],
            "grouping": "",
            "trails": [
                {"hop": hop, "came": name("came", hop), "sent": name("sent", hop), "pad": name("sealed pad", hop)}
                for hop in chain
            ],
            "signatures": [2 * name("bound", signer) for signer in (*chain, "aggregator")],
        },
        "fences": [fence],
    }
    groups = {
        **manifest,
        "earlier": [],
        "aggregator_keys": [key("aggregator", "")],
        "group_size": 3,
        "invited": [],
        "bound": None,
        "fences": [],
    }
    of = manifest_digest(manifest).hex()
    recipients = (*chain, "aggregator")
    seeds = [{"recipient": r, "sealed": (2 * name(r) + name())[:160], "commitment": name("c", r)} for r in recipients]
    header = {"silo": "silo-2", "manifest": of, "seeds": seeds, "chunks": 7}
    cohort = {"manifest": of, "participants": [{"silo": silo, "header": name("header", silo)} for silo in silos]}
    at, body, named = bytes.fromhex(federation), bytes.fromhex(name("root")), cohort_digest(cohort)
    head = bytes.fromhex(manifest["head"])
    seal = digest("grouping-seal", bytes.fromhex(2 * name("grouping"))).hex()
    bodies = digest("bodies", 3, *(bytes.fromhex(name("body", silo)) for silo in silos)).hex()

    def trails(grouping: str) -> list[Json]:
        roots = (bodies, name("first"), name("second"))
        return [
            {
                "hop": hop,
                "cohort": named.hex(),
                "grouping": grouping,
                "came": came,
                "sent": sent,
                "pad": digest("pad", bytes.fromhex(name("pad", hop))).hex(),
            }
            for hop, came, sent in zip(chain, roots, roots[1:], strict=False)
        ]

    ready: Json = {"manifest": of, "model": manifest["model"], "trails": trails("")}
    agreed = ready_digest(ready).hex()
    signatures = [[signer, 2 * name("agreed", signer)] for signer in recipients]
    first: Json = {
        "federation": federation,
        "round": 0,
        "outcome": "genesis",
        "attempts": [],
        "root": "",
        "model_before": name("model"),
        "model_after": name("model"),
        "state_before": name("state"),
        "state_after": name("state"),
        "previous": digest("genesis", at).hex(),
    }
    failed = {"attempt": 1, "manifest": earlier, "chain": chain, "agreed": "", "silos": [], "signatures": []}
    released = {**failed, "attempt": 2, "manifest": of, "agreed": agreed, "silos": silos, "signatures": signatures}
    record: Json = {
        **first,
        "round": 3,
        "outcome": "applied",
        "attempts": [failed, released],
        "root": ready["trails"][-1]["sent"],
        "model_after": name("next model"),
        "state_after": name("next state"),
        "previous": name("head"),
    }
    on_record = record_digest(record)
    made: list[tuple[str, Json, bytes]] = [
        ("round key", key("hop-1", "silo-2"), round_key_digest(at, head, key("hop-1", "silo-2"))),
        ("round key", key("aggregator", ""), round_key_digest(at, head, key("aggregator", ""))),
        ("fence", fence, fence_digest(at, fence)),
        ("manifest", manifest, manifest_digest(manifest)),
        ("manifest", groups, manifest_digest(groups)),
        ("header", header, header_digest(header)),
        ("cohort", cohort, named),
        (
            "receipt",
            {"silo": "silo-2", "manifest": of, "root": body.hex(), "hop": "hop-1"},
            digest("receipt", "silo-2", bytes.fromhex(of), body, "hop-1"),
        ),
        ("grouping", {"cohort": named.hex(), "groups": [0, 1, 0]}, digest("grouping", named, 3, 0, 1, 0)),
        (
            "trailer",
            {"header": name("header"), "root": body.hex()},
            digest("trailer", bytes.fromhex(name("header")), body),
        ),
        (
            "bodies",
            {"roots": [name("body", silo) for silo in silos]},
            bytes.fromhex(bodies),
        ),
        ("pad", {"pad": name("pad", "hop-1")}, bytes.fromhex(ready["trails"][0]["pad"])),
        ("grouping seal", {"signature": 2 * name("grouping")}, bytes.fromhex(seal)),
        ("release", trails("")[1], trail_digest(trails("")[1])),
        ("release", trails(seal)[0], trail_digest(trails(seal)[0])),
        ("ready", ready, bytes.fromhex(agreed)),
        ("ready", {**ready, "trails": trails(seal)}, ready_digest({**ready, "trails": trails(seal)})),
        ("record", first, record_digest(first)),
        ("record", record, on_record),
        (
            "countersigned",
            {"record": on_record.hex(), "name": "hop-1"},
            digest("countersigned", on_record, "hop-1"),
        ),
        ("computed", {"record": on_record.hex(), "name": "silo-1"}, digest("computed", on_record, "silo-1")),
        (
            "delivery",
            {"name": "aggregator", "manifest": of, "root": body.hex()},
            digest("delivery", "aggregator", bytes.fromhex(of), body),
        ),
    ]
    places = {"federation": federation, "head": head.hex()}
    good = [{"kind": kind, **places, "message": what, "digest": d.hex()} for kind, what, d in made]
    return {"good": good, "bad": []}


def pad_vectors() -> Json:
    """Pads: expanded as masks are, and bound to cohort, grouping and hop instead."""
    context: Json = {
        "cohort": hashlib.sha256(b"cohort").hexdigest(),
        "grouping": "",
        "hop": "hop-1",
        "chunk_parameters": 64,
    }
    other: Json = {
        "cohort": hashlib.sha256(b"another cohort").hexdigest(),
        "grouping": hashlib.sha256(b"grouping").hexdigest(),
        "hop": "hop-2",
        "chunk_parameters": 65,
    }
    pad, moduli, good = hashlib.sha256(b"pad").digest(), [512, 511], []
    for one in (context, *({**context, name: value} for name, value in other.items())):
        for index, length in ((0, 64), (2, 13)):
            planes = mask(pad, pad_info(one), moduli, index, length)
            good.append(
                {
                    "pad": pad.hex(),
                    "context": one,
                    "info": pad_info(one).hex(),
                    "moduli": moduli,
                    "index": index,
                    "length": length,
                    "planes": [pack(plane, width_of(m)).hex() for plane, m in zip(planes, moduli, strict=True)],
                }
            )
    return {"good": good, "bad": []}


def files() -> dict[str, Json]:
    """Return the content of every file by its name."""
    return {
        "digest.json": digest_vectors(),
        "plan.json": plan_vectors(),
        "packing.json": packing_vectors(),
        "root.json": root_vectors(),
        "quantise.json": quantise_vectors(),
        "mask.json": mask_vectors(),
        "seal.json": seal_vectors(),
        "message.json": message_vectors(),
        "pad.json": pad_vectors(),
    }


def dump(content: Json) -> str:
    """One vector a line."""
    parts = (
        f'"{kind}": [\n' + ",\n".join(json.dumps(vector, ensure_ascii=True) for vector in content[kind]) + "\n]"
        for kind in ("good", "bad")
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def load(name: str) -> Json:
    """Return what is committed."""
    committed: Json = json.loads((HERE / name).read_text())
    return committed


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for name, content in files().items():
        (HERE / name).write_text(dump(content))
