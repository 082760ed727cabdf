"""Version 1 of the protocol in plain Python: what the vectors come from, and what the product is checked against.

Nothing is shared with the product: numbers are Python's integers, floats and fractions, slices are written bit by bit,
HKDF is two lines of HMAC, AES-CTR is AES-ECB over counters that are counted here, and HPKE follows RFC 9180 step by
step. It is slow, and each function can be held against one paragraph of docs/protocol.md.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, count, islice
from math import gcd, prod
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Json = dict[str, Any]
Part = bytes | int | str


# Section 5: framing.


def frame(domain: str, *parts: Part) -> bytes:
    """Write a type, a length and the content of each part, the first being the domain."""
    out = b""
    for part in (f"silomix/v1/{domain}", *parts):
        kind = {bytes: b"b", str: b"s", int: b"i"}[type(part)]
        content = part if isinstance(part, bytes) else str(part).encode("utf-8")
        out += kind + len(content).to_bytes(8, "little") + content
    return out


def digest(domain: str, *parts: Part) -> bytes:
    """SHA-256 of the frame."""
    return hashlib.sha256(frame(domain, *parts)).digest()


def raw(hexadecimal: str) -> bytes:
    return bytes.fromhex(hexadecimal)


def round_key_digest(federation: bytes, head: bytes, key: Json) -> bytes:
    names = (key["hop"], key["silo"], key["round"], key["attempt"], raw(key["public_key"]), key["last_released"])
    return digest("round-key", federation, head, *names)


def fence_digest(federation: bytes, fence: Json) -> bytes:
    return digest("fence", federation, fence["hop"], fence["round"], fence["attempt"], raw(fence["manifest"]))


def schema_digest(tensors: Sequence[Json]) -> bytes:
    parts: list[Part] = [len(tensors)]
    for t in tensors:
        parts += [t["name"], t["dtype"], t["kind"], len(t["shape"]), *t["shape"]]
    return digest("schema", *parts, sum(prod(t["shape"]) for t in tensors))


def bond_digest(bond: Json | None, model: str) -> bytes:
    """What a manifest has of the proof of whom its model is bound to; nothing if it is free."""
    if bond is None:
        return b""
    cohort = cohort_digest(bond).hex()
    trails = [{**trail, "cohort": cohort, "grouping": bond["grouping"]} for trail in bond["trails"]]
    agreed = ready_digest({"manifest": bond["manifest"], "model": model, "trails": trails})
    return digest("bond", agreed, len(bond["signatures"]), *map(raw, bond["signatures"]))


def manifest_digest(m: Json) -> bytes:
    """What the aggregator signs. Keys and fences stand in it with their signatures."""
    federation, head = raw(m["federation"]), raw(m["head"])
    parts: list[Part] = [federation, head, m["applied"], m["round"], m["attempt"]]
    parts += [len(m["earlier"]), *map(raw, m["earlier"])]
    parts += [raw(m["model"]), raw(m["state"]), schema_digest(m["schema"])]
    parts += [plan_digest(m["plan"], m["moduli"]), len(m["bounds"])]
    parts += [struct.pack("<d", float.fromhex(bound)) for bound in m["bounds"]]
    parts += [m["update"], m["granularity"], len(m["chain"]), *m["chain"]]
    for keys in (m["hop_keys"], m["aggregator_keys"]):
        parts.append(len(keys))
        for key in keys:
            parts += [round_key_digest(federation, head, key), raw(key["signature"])]
    parts += [m["group_size"], len(m["invited"]), *m["invited"]]
    parts += [m["minimum_cohort"], m["chunk_parameters"], m["deadline_s"], bond_digest(m["bound"], m["model"])]
    parts.append(len(m["fences"]))
    for fence in m["fences"]:
        parts += [fence_digest(federation, fence), raw(fence["signature"])]
    return digest("manifest", *parts)


def header_digest(h: Json) -> bytes:
    parts: list[Part] = [h["silo"], raw(h["manifest"]), len(h["seeds"])]
    for seed in h["seeds"]:
        parts += [seed["recipient"], raw(seed["sealed"]), raw(seed["commitment"])]
    return digest("header", *parts, h["chunks"])


def cohort_digest(c: Json) -> bytes:
    parts: list[Part] = [raw(c["manifest"]), len(c["participants"])]
    for p in c["participants"]:
        parts += [p["silo"], raw(p["header"])]
    return digest("cohort", *parts)


def trail_digest(t: Json) -> bytes:
    """What a hop signs of its part in an attempt."""
    roots = (raw(t["came"]), raw(t["sent"]), raw(t["pad"]))
    return digest("release", t["hop"], raw(t["cohort"]), raw(t["grouping"]), *roots)


def ready_digest(ready: Json) -> bytes:
    """What everybody signs before a pad is shown: all trails belong to one cohort and grouping."""
    trails = ready["trails"]
    parts: list[Part] = [raw(ready["manifest"]), raw(ready["model"])]
    parts += [raw(trails[0]["cohort"]), raw(trails[0]["grouping"]), len(trails)]
    for t in trails:
        parts += [t["hop"], raw(t["came"]), raw(t["sent"]), raw(t["pad"])]
    return digest("ready", *parts)


def record_digest(r: Json) -> bytes:
    """What the aggregator signs of a round that is over; the next record and every countersignature refer to it."""
    parts: list[Part] = [raw(r["federation"]), r["round"], r["outcome"], len(r["attempts"])]
    for one in r["attempts"]:
        parts += [one["attempt"], raw(one["manifest"]), len(one["chain"]), *one["chain"], raw(one["agreed"])]
        parts += [len(one["silos"]), *one["silos"], len(one["signatures"])]
        for name, signature in one["signatures"]:
            parts += [name, raw(signature)]
    rest = ("root", "model_before", "model_after", "state_before", "state_after", "previous")
    return digest("record", *parts, *(raw(r[key]) for key in rest))


def pad_info(context: Json) -> bytes:
    """What a pad is bound to, for HKDF: it is expanded as a mask is."""
    digests = (raw(context["cohort"]), raw(context["grouping"]))
    return frame("pad", *digests, context["hop"], context["chunk_parameters"])


# Section 2: the plan. Slow and plain, for the small policies of the vectors.


def largest(r: int, quantiser: str) -> int:
    """Return v."""
    return 127 if quantiser == "int8" else int("9" * r)


def is_prime(k: int) -> bool:
    return k > 1 and all(k % d for d in range(2, int(k**0.5) + 1))


def first_primes(need: int) -> list[int]:
    chosen: list[int] = []
    candidates = filter(is_prime, count(2))
    while prod(chosen) < need:
        chosen.append(next(candidates))
    return chosen


def least_sum(need: int, prime: bool) -> list[int]:
    """Return the coprime set of least sum that reaches need, of equals the one of greatest product."""
    ceiling = sum(first_primes(need))
    best: dict[int, tuple[int, list[int]]] = {0: (1, [])}  # sum -> greatest product and its set
    for p in filter(is_prime, range(2, ceiling + 1)):
        powers = [p] if prime else [p**k for k in range(1, 12) if p**k <= ceiling]
        for total, (product, chosen) in list(best.items()):
            for q in powers:
                if total + q <= ceiling and product * q > best.get(total + q, (0, []))[0]:
                    best[total + q] = (product * q, [*chosen, q])
    return sorted(min((s, -product, chosen) for s, (product, chosen) in best.items() if product >= need)[2])


def least_bits(need: int, prime: bool) -> list[int]:
    """Return the coprime moduli of least total width; then fewest; then most even; then of greatest product.

    One prime is enough, and of other moduli there are at least two.

    Of each width only the 48 greatest candidates are tried, which is plenty for plans of two or three moduli.
    """

    def candidates(width: int) -> list[int]:
        ms = (m for m in range(1 << width, 1 << (width - 1), -1) if not prime or is_prime(m))
        return [m for m, _ in zip(ms, range(48), strict=False)]

    def sets(widths: Sequence[int]) -> Iterator[list[int]]:
        if not widths:
            yield []
            return
        for rest in sets(widths[1:]):
            yield from ([m, *rest] for m in candidates(widths[0]) if all(gcd(m, k) == 1 for k in rest))

    for bits in count(max(2, (need - 1).bit_length())):
        if prime and bits <= 20 and candidates(bits) and candidates(bits)[0] >= need:
            return [candidates(bits)[0]]
        for u in (2, 3):
            splits = [ws for ws in combinations_with_replacement(range(20, 0, -1), u) if sum(ws) == bits]
            for widths in sorted(splits, key=lambda ws: (ws[0] - ws[-1], ws)):
                if prod(1 << w for w in widths) >= need:
                    found = max(sets(widths), key=prod, default=[])
                    if found and prod(found) >= need:
                        return sorted(found, reverse=True)
    raise AssertionError


def moduli_of(policy: Json) -> list[int] | None:
    """Return the moduli of a policy, or nothing if none hold."""
    if min(policy["n_max"], policy["r"], policy["weight_levels"]) < 1 or policy["headroom"] < 0:
        return None
    v = largest(policy["r"], policy["quantiser"])
    need = (2 * policy["n_max"] * policy["weight_levels"] * v + 1) * 2 ** policy["headroom"]
    if policy["weight_levels"] * v > 2**62 or need > 2**100:
        return None
    prime = policy["level"] == "malicious"
    if policy["encoding"] == "first-primes":
        return first_primes(need)
    return (least_sum if policy["encoding"] == "unary" else least_bits)(need, prime)


def plan_digest(policy: Json, moduli: Sequence[int]) -> bytes:
    names = ("n_max", "r", "encoding", "level", "weight_levels", "headroom", "quantiser")
    return digest("plan", *(policy[name] for name in names), *moduli)


# Section 3: values and planes.


def quantise(p: float, bound: float, v: int) -> tuple[int, bool]:
    """Return x and whether it was clipped: both operations are exact fractions, rounded once to binary64."""
    scale = float(Fraction(float(v)) / Fraction(bound))
    try:
        y = float(Fraction(p) * Fraction(scale))
    except OverflowError:
        return (v if p > 0 else -v), True
    x = round(Fraction(y))  # a fraction rounds half to even
    return max(-v, min(v, x)), abs(x) > v


def width_of(modulus: int) -> int:
    return len(bin(modulus - 1)) - 2


def pack(residues: Sequence[int], width: int) -> bytes:
    """Write the slices: each is one integer, whose binary digits are one bit of every residue, the first one lowest."""
    plane = b""
    for b in range(width):
        digits = "".join(str(r >> b & 1) for r in reversed(residues))
        plane += int("0" + digits, 2).to_bytes((len(residues) + 7) // 8, "little")
    return plane


def slices_of(plane: bytes, width: int, n: int) -> list[int]:
    """Cut a plane into its slices, as integers."""
    size = (n + 7) // 8
    return [int.from_bytes(plane[b * size : (b + 1) * size], "little") for b in range(width)]


def unpack(plane: bytes, width: int, n: int) -> list[int]:
    """Read n values, whatever they are."""
    rows = [format(bits, f"0{n + 7}b")[::-1] for bits in slices_of(plane, width, n)]
    return [sum((rows[b][i] == "1") << b for b in range(width)) for i in range(n)]


def refuse(plane: bytes, modulus: int, n: int) -> tuple[str, int] | None:
    """Return the reason and the offset for which a plane is refused, or nothing if it is good."""
    w, size = width_of(modulus), (n + 7) // 8
    if len(plane) != w * size:
        return "wrong_length", min(len(plane), w * size)
    for b, bits in enumerate(slices_of(plane, w, n)):
        if bits >> n:
            return "trailing_bits", b * size + size - 1
    return next((("residue_range", i // 8) for i, r in enumerate(unpack(plane, w, n)) if r >= modulus), None)


def chunk_digest(index: int, first: int, planes: Sequence[bytes]) -> bytes:
    """Digest a chunk: every plane is hashed on its own."""
    return digest("chunk", index, first, *(blake3(plane).digest() for plane in planes))


def root(chunks: Sequence[bytes]) -> bytes:
    """Return the root of a body with chunks of these digests."""
    return digest("body", len(chunks), *chunks)


def crt(residues: Sequence[int], moduli: Sequence[int]) -> int:
    """Return the integer of least magnitude with these residues; of -M/2 and M/2 the negative one."""
    x, step = 0, 1
    for r, m in zip(residues, moduli, strict=True):
        x += (r - x) * pow(step, -1, m) % m * step
        step *= m
    return x if 2 * x < step else x - step


# Section 4: masks.


def info(context: Json) -> bytes:
    """A mask is bound to the manifest's digest, which covers all else of an attempt, and to its layer."""
    return frame("mask", raw(context["manifest"]), context["layer"], context["chunk_parameters"], context["direction"])


def extract(salt: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), secret, "sha256")


def expand(key: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand of RFC 5869, for one block: all that anybody asks for here."""
    assert length <= 32
    return hmac.digest(key, label + b"\x01", "sha256")[:length]


def keystream(key: bytes, prefix: bytes) -> Iterator[int]:
    """Yield the bytes of AES-CTR: the prefix fills 12 bytes of the counter block, the last 4 count from 2."""
    assert len(prefix) == 12
    ecb = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    for block in count(2):
        yield from ecb.update(prefix + block.to_bytes(4, "big"))


def mask(seed: bytes, info: bytes, moduli: Sequence[int], index: int, length: int) -> list[list[int]]:
    """Expand one chunk, residue by residue."""
    keys = expand(extract(b"", seed), info, 32)
    main = keystream(keys[:16], index.to_bytes(12, "big"))
    planes: list[list[int]] = []
    for j, m in enumerate(moduli):
        w = width_of(m)
        plane = unpack(bytes(islice(main, w * ((length + 7) // 8))), w, length)
        redraw = keystream(keys[16:], index.to_bytes(8, "big") + j.to_bytes(4, "big"))
        for i in range(length):
            while plane[i] >= m:
                plane[i] = int.from_bytes(bytes(islice(redraw, 4)), "little") % (1 << w)
        planes.append(plane)
    return planes


def hpke_seal(plain: bytes, ephemeral: bytes, public: bytes, info: bytes, aad: bytes = b"") -> bytes:
    """RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM, one message."""
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x01"

    def labeled_extract(suite_id: bytes, salt: bytes, label: bytes, ikm: bytes) -> bytes:
        return extract(salt, b"HPKE-v1" + suite_id + label + ikm)

    def labeled_expand(suite_id: bytes, key: bytes, label: bytes, rest: bytes, length: int) -> bytes:
        return expand(key, length.to_bytes(2, "big") + b"HPKE-v1" + suite_id + label + rest, length)

    private = X25519PrivateKey.from_private_bytes(ephemeral)
    encapsulated = private.public_key().public_bytes_raw()
    dh = private.exchange(X25519PublicKey.from_public_bytes(public))
    shared = labeled_expand(kem, labeled_extract(kem, b"", b"eae_prk", dh), b"shared_secret", encapsulated + public, 32)
    schedule = (
        b"\x00" + labeled_extract(suite, b"", b"psk_id_hash", b"") + labeled_extract(suite, b"", b"info_hash", info)
    )
    secret = labeled_extract(suite, shared, b"secret", b"")
    key = labeled_expand(suite, secret, b"key", schedule, 16)
    nonce = labeled_expand(suite, secret, b"base_nonce", schedule, 12)
    return encapsulated + AESGCM(key).encrypt(nonce, plain, aad)
