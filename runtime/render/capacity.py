"""What a round costs each place in a federation: bytes, processor time, memory and disk, as a formula.

Bytes follow from the plan. Time and memory were measured on real federations (docs/operations.md, "Capacity") and put
down here as a few constants for each place; they are one machine's, so they size a host and promise nothing. What a
silo's training takes is its task's affair and not in here, and neither are the paper's literal modes.
"""

from dataclasses import dataclass
from enum import StrEnum

from silomix.runtime.config.kinds import Role
from silomix.runtime.core.numbers.plan import CHUNK_PARAMETERS
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.store.home import KEPT_MODELS, KEPT_ROUNDS

MIB = 1 << 20
FLOAT_BYTES = 4
"""A parameter of the global model, as it is served and kept."""
HEADER_BYTES = 320
"""A silo's header on its way through the chain, but for the seeds: names, digests, signatures."""
SEED_BYTES = 116
"""One sealed seed with its commitment, for each hop and the aggregator."""
CHUNK_BYTES = 40
"""Framing of one chunk, whatever is in it."""
MEASURED_PARAMETERS = 11_237_432
"""ResNet-18 as the paper counts it: what is assumed of a model that nobody has shown."""


class Place(StrEnum):
    """Where a node stands: hop 1 takes every silo's body in, later hops one sum."""

    SILO = "silo"
    FIRST_HOP = "hop 1"
    LATER_HOP = "later hop"
    AGGREGATOR = "aggregator"


@dataclass(frozen=True)
class Load:
    """What a round's cost depends on."""

    parameters: int
    silos: int
    hops: int
    bits: int
    """Per parameter on the wire, by the plan."""
    rounds: int
    """For the disk: the aggregator keeps the newest models."""
    chunk_parameters: int = CHUNK_PARAMETERS
    sums: int = 1
    """Sums that leave the chain: one, or one for each group."""

    @property
    def body_bytes(self) -> int:
        """One silo's body, or a sum, without headers."""
        chunks = -(-self.parameters // self.chunk_parameters)
        return -(-self.parameters * self.bits // 8) + chunks * CHUNK_BYTES

    @property
    def header_bytes(self) -> int:
        """One silo's header."""
        return HEADER_BYTES + SEED_BYTES * (self.hops + 1)

    @property
    def model_bytes(self) -> int:
        """The global model."""
        return FLOAT_BYTES * self.parameters


@dataclass(frozen=True)
class Needs:
    """One node's part in one round, and what it occupies all the time."""

    received_bytes: int
    sent_bytes: int
    cpu_s: float
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class _Cost:
    """What was measured at one place."""

    base_mib: int
    """Python, its libraries and the compiled kernels."""
    bytes_per_parameter: float
    mib_per_silo: float
    round_s: float
    """Whatever the model's size: keys, TLS, the journal."""
    silo_s: float
    """For each silo, whatever the model's size: signatures, seals, a stream."""
    ns_per_parameter: float
    ns_per_value: float
    """For each parameter of each silo."""


COSTS = {
    Place.SILO: _Cost(230, 34, 0, 0.02, 0.001, 52, 0),
    Place.FIRST_HOP: _Cost(250, 6, 0.5, 0, 0.012, 0, 17),
    Place.LATER_HOP: _Cost(220, 4, 0, 0.04, 0.003, 0, 4),
    Place.AGGREGATOR: _Cost(230, 34, 0, 0.05, 0.004, 0, 15),
}


def needs(place: Place, load: Load) -> Needs:
    """Work out what a node at a place needs."""
    cost, values = COSTS[place], load.parameters * load.silos
    body, headers = load.body_bytes, load.silos * load.header_bytes
    one, every, total = body + load.header_bytes, load.silos * body + headers, load.sums * body + headers
    # Silos compute the model of the sum, or download it where sums leave by group.
    down = body + headers if load.sums == 1 else load.model_bytes
    kept = (min(load.rounds, KEPT_MODELS) + 3) * load.model_bytes + KEPT_ROUNDS * total
    received, sent, disk = {
        Place.SILO: (down, one, 2 * body + 2 * load.model_bytes),
        Place.FIRST_HOP: (every, total, 2 * load.silos * body),
        Place.LATER_HOP: (total, total, 0),
        Place.AGGREGATOR: (total, load.silos * down, kept),
    }[place]
    return Needs(
        received_bytes=received,
        sent_bytes=sent,
        cpu_s=cost.round_s
        + cost.silo_s * load.silos
        + (cost.ns_per_parameter * load.parameters + cost.ns_per_value * values) / 1e9,
        memory_bytes=int(
            cost.base_mib * MIB + cost.bytes_per_parameter * load.parameters + cost.mib_per_silo * MIB * load.silos
        ),
        disk_bytes=disk,
    )


def load_of(federation: Federation, parameters: int) -> Load:
    """Take a federation's numbers together."""
    policy = federation.policy
    silos = len(federation.silos)
    return Load(
        parameters,
        silos,
        len(federation.chain),
        federation.plan.packed_bits,
        policy.rounds,
        policy.chunk_parameters,
        max(1, silos // policy.group_size) if policy.group_size else 1,
    )


def place_of(name: str, role: Role, federation: Federation) -> Place:
    """Say where a node stands. A shuffler that stands by is sized for a later hop's place."""
    if role is Role.SHUFFLER:
        first = federation.chain[: 1 + federation.chain_rule.lost]  # those before it may be lost
        return Place.FIRST_HOP if name in first else Place.LATER_HOP
    return Place.SILO if role is Role.SILO else Place.AGGREGATOR
