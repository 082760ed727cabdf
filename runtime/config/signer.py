"""Identities that live outside files: a command of the owner's signs, and this process never sees the key.

The command gets a digest on its standard input, as 64 hex digits and a line's end, and writes the signature to its
standard output, as 128. What it does in between is its own: ask a token, an agent, a vault. Every signature is verified
before it is used, so that a command that answers nonsense is found here and not by a peer.
"""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from silomix.runtime.core.errors import PeerFault, UserError
from silomix.runtime.core.protocol.identity import Signer, verify

SIGN_S = 30.0
"""Time that a command has: somebody may have to touch a token."""


class SignerError(UserError, OSError):
    """Nobody signs: what the command said, and what to look at. It may do so later, so that a node goes on trying."""


@dataclass(frozen=True)
class CommandSigner:
    """Signs by running a command, with the key whose public half is known."""

    command: Sequence[str]
    public: bytes

    def sign(self, what: bytes) -> bytes:
        """Sign a digest."""
        name = self.command[0]
        try:
            done = subprocess.run(  # noqa: S603 - the owner's own command, from the owner's own file
                list(self.command), input=f"{what.hex()}\n".encode(), capture_output=True, timeout=SIGN_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise SignerError(
                f"{name} did not sign within {SIGN_S:.0f} s: see to the token or agent behind it"
            ) from None
        except OSError as error:
            raise SignerError(f"{name} cannot be run: {error.strerror}") from None
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
            raise SignerError(f"{name} ended with code {done.returncode} and said: {said[0][:200]}")
        text = done.stdout.decode(errors="replace").strip()
        if not re.fullmatch("[0-9a-fA-F]{128}", text):
            raise SignerError(f"{name} wrote {len(text)} characters where a signature is 128 hex digits")
        signature = bytes.fromhex(text)
        try:
            verify(self.public, what, signature, name)
        except PeerFault:
            raise SignerError(
                f"{name} signs with another key than {self.public.hex()}, which the federation file lists"
            ) from None
        return signature


def signer_of(command: Sequence[str], token: str, public: bytes) -> Signer:
    """Return what signs with a key that is in no file: a command, or a token."""
    from silomix.runtime.config.token import TokenSigner, parse_uri

    return TokenSigner(parse_uri(token), public) if token else CommandSigner(command, public)
