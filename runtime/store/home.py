"""Every path of a federation on a disk, once: the directory that `init` writes, a node's own in it, and its state.

    federation.toml                       the file that all pin
    OWNER.accepted  NODE.pin              the owners' signatures on it, and by which certificate each node is known
    epochs/N/                             a later epoch: the same files once more
    ca.pem  ca.key                        in a federation with a CA: what certificates are checked by, what signs them
    owner.key                             this owner's own, to sign with
    NODE/                                 `Home`: one for each node
        node.toml  identity.key  tls.pem  tls.key
        NODE.enrol                        what others are told of the node
        next.pem  next.key                the certificate that it is about to change to
        initial.safetensors               the aggregator's: the model before round 1
        capture/  log.txt                 where the launcher puts what a node saw and said
        state/                            `State`: made by the node itself; its configuration may put it elsewhere

Nothing is read or written here, and nothing heavy is loaded: a probe that runs every few seconds uses it too.
"""

from dataclasses import dataclass
from pathlib import Path

FEDERATION_FILE = "federation.toml"
ANCHOR_FILE = "ca.pem"
ANCHOR_KEY_FILE = "ca.key"
NODE_FILE = "node.toml"
IDENTITY_FILE = "identity.key"
CERTIFICATE_FILE = "tls.pem"
CERTIFICATE_KEY_FILE = "tls.key"
OWNER_KEY_FILE = "owner.key"
TOKENS_FILE = "identity.tokens"
NEXT_IDENTITY = "next-"
"""How the name of the identity begins that a node is to have in a later epoch."""
EPOCHS_DIRECTORY = "epochs"
NEXT_CERTIFICATE_FILE = "next.pem"
NEXT_KEY_FILE = "next.key"
ENROLMENT = ".enrol"
"""How the name of a node's enrolment file ends."""
PIN = ".pin"
"""How the name of a file ends that says by which certificate a node is known."""
ACCEPTED = ".accepted"
"""How the name of a file ends by which an owner agrees to a federation file."""
INITIAL_MODEL = "initial.safetensors"
STATE_DIRECTORY = "state"
SECRETS_DIRECTORY = "secrets"
CAPTURE_DIRECTORY = "capture"
KEPT_ROUNDS = 8
"""Rounds whose sums an aggregator keeps: a silo that has missed more takes the word of a majority of the silos."""
KEPT_MODELS = 50
"""Global models that an aggregator keeps, unless its configuration says otherwise."""
_MODEL_NAME = 32
"""Hex digits of a digest that name a model's file: half of them tell any two apart."""


@dataclass(frozen=True)
class State:
    """What a node keeps between two starts, below the directory that its configuration names."""

    directory: Path

    @property
    def journal(self) -> Path:
        """Every node's durable facts."""
        return self.directory / "journal.sqlite"

    @property
    def secrets(self) -> Path:
        """A hop's round keys, beside the journal that opens them; gone when their round is over."""
        return self.journal.parent / SECRETS_DIRECTORY

    @property
    def paused(self) -> Path:
        """There while an operator holds the federation between rounds; the aggregator's."""
        return self.directory / "paused"

    @property
    def models(self) -> Path:
        """The aggregator's models, or the one that a silo has computed, and the states of the server's optimiser."""
        return self.directory / "models"

    def model(self, digest: bytes) -> Path:
        """One global model."""
        return self.models / f"{digest.hex()[:_MODEL_NAME]}.safetensors"

    def moments(self, digest: bytes, round_: int) -> Path:
        """The optimiser's state after the round that made a model."""
        return self.models / f"{digest.hex()[:_MODEL_NAME]}-{round_}.moments"

    @property
    def pins(self) -> Path:
        """The newest pins that the node was shown: older ones are never taken again."""
        return self.directory / "pins"

    @property
    def epochs(self) -> Path:
        """The later epochs that the node was shown, each in a directory of its own."""
        return self.directory / EPOCHS_DIRECTORY

    @property
    def epoch(self) -> Path:
        """Names the epoch in which the node is, by its digest, if that is not the one of its federation file."""
        return self.epochs / "now"

    @property
    def sums(self) -> Path:
        """The aggregator's newest sums as they came, with what it takes to read them: for silos."""
        return self.directory / "sums"

    @property
    def evidence(self) -> Path:
        """Evidence against those who lied in a tamper check: the aggregator's."""
        return self.directory / "evidence"

    @property
    def spool(self) -> Path:
        """A hop's bodies on their way in."""
        return self.directory / "spool"

    @property
    def frozen(self) -> Path:
        """A silo's integers of the newest round."""
        return self.directory / "frozen"

    def update(self, round_: int) -> Path:
        """A silo's update in clear, where its configuration keeps them for tests."""
        return self.directory / f"update-{round_}.safetensors"

    def updates(self) -> dict[int, Path]:
        """The updates in clear that are here, by round."""
        return {int(path.stem.rpartition("-")[2]): path for path in self.directory.glob("update-*.safetensors")}

    @property
    def last_body(self) -> Path:
        """The size of a silo's last body, as it counted it."""
        return self.directory / "last-body.json"


@dataclass(frozen=True)
class Home:
    """A node's directory, as `init` arranges it."""

    directory: Path

    @property
    def file(self) -> Path:
        """The node's own settings."""
        return self.directory / NODE_FILE

    @property
    def initial_model(self) -> Path:
        """The model before round 1."""
        return self.directory / INITIAL_MODEL

    @property
    def capture(self) -> Path:
        """What the node saw, if it was started to record it."""
        return self.directory / CAPTURE_DIRECTORY

    @property
    def log(self) -> Path:
        """What the node said, if the launcher started it."""
        return self.directory / "log.txt"

    @property
    def state(self) -> State:
        """What it keeps."""
        return State(self.directory / STATE_DIRECTORY)
