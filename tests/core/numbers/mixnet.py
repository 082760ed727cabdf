"""The paper's MixNet, written literally: onions, Alg. "Shuffling with MixNet" and Alg. "MixVerify".

The onions are real: HPKE to each server's X25519 key. Which zero-knowledge proof is meant the paper leaves open, so it
is an ideal one here: who generates it shows both vectors to somebody whom all trust, and who verifies it asks there.
Where the printed form is wrong it stays, and ours beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
LAYER_BYTES = 48
"""What one layer adds: the encapsulated key and the tag."""


class Abort(Exception):  # noqa: N818 - what the algorithm does
    """A server rejects what it was sent, and the run ends."""

    def __init__(self, server: int) -> None:
        super().__init__(f"server {server} rejects")
        self.server = server


def onion_enc(message: bytes, key: X25519PublicKey) -> bytes:
    """Onion_Enc: put one layer round a message."""
    return SUITE.encrypt(message, key)


def onion_dec(message: bytes, key: X25519PrivateKey) -> bytes:
    """Onion_Dec: take one layer off."""
    return SUITE.decrypt(message, key)


def wrap(message: bytes, keys: Sequence[X25519PublicKey]) -> bytes:
    """Alg. "Shuffling with MixNet", client side: the last server's layer innermost."""
    for key in reversed(keys):
        message = onion_enc(message, key)
    return message


Vector = list[bytes]


@dataclass
class Proofs:
    """Generate_ZKP and Verify_ZKP as an ideal functionality: it looks at both vectors, and tells only yes or no."""

    _claims: list[tuple[Vector, bool]] = field(default_factory=list)

    def generate(self, taken: Vector, sent: Vector) -> int:
        """Return a proof that `sent` is a permutation of `taken`; one of a false claim never verifies."""
        self._claims.append((list(sent), sorted(taken) == sorted(sent)))
        return len(self._claims) - 1

    def verify(self, vector: Vector, proof: int) -> bool:
        """Say whether this vector was proved to be a permutation of what the prover had decrypted."""
        sent, holds = self._claims[proof]
        return holds and sent == vector


Forge = Callable[[int, Vector], Vector]
"""What a server sends in place of what it should."""


def honest(server: int, vector: Vector) -> Vector:
    return vector


def mix_verify(
    C: Vector,
    j: int,
    proof: int | None,
    key: X25519PrivateKey,
    proofs: Proofs,
    rng: Random,
    *,
    printed: bool = False,
    forge: Forge = honest,
) -> tuple[Vector, int]:
    """Alg. "MixVerify". As printed, the proof is held against what this server decrypted.

    Nobody can have proved anything about that: the previous server saw it under a layer. Ours holds it against what
    came.
    """
    try:
        M = [onion_dec(onion, key) for onion in C]
    except InvalidTag:
        raise Abort(j) from None
    if j > 1:
        assert proof is not None
        if not proofs.verify(M if printed else C, proof):
            raise Abort(j)
    shuffled = list(M)
    rng.shuffle(shuffled)
    shuffled = forge(j, shuffled)
    return shuffled, proofs.generate(M, shuffled)


def mix(
    onions: Vector,
    keys: Sequence[X25519PrivateKey],
    rng: Random,
    *,
    printed: bool = False,
    forge: Forge = honest,
) -> Vector:
    """Alg. "Shuffling with MixNet", server side: C goes through all servers. Whoever takes the output verifies too.

    The printed form has nobody verify the last server; the receiver here counts as one server more.
    """
    C, proofs, proof = list(onions), Proofs(), None
    for j, key in enumerate(keys, 1):
        C, proof = mix_verify(C, j, proof, key, proofs, rng, printed=printed, forge=forge)
    assert proof is not None
    if not printed and not proofs.verify(C, proof):
        raise Abort(len(keys) + 1)
    return C
