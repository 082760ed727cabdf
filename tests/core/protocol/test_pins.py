"""R7: schema and number of values are pinned by the policy, and checked before anything of that size exists."""

from dataclasses import replace
from math import prod
from typing import Any

import pytest
from tests.core.protocol.federations import (
    AGGREGATOR,
    MODEL,
    OTHER_MODEL,
    SCHEMA,
    STATE,
    counted,
    federation,
    header,
    identity,
    manifest,
    past,
    private,
    rng,
)
from tests.core.protocol.hops import opening

from silomix.runtime.core.errors import PeerFault, Reason
from silomix.runtime.core.numbers.plan import Level
from silomix.runtime.core.numbers.schema import Schema, TensorSpec
from silomix.runtime.core.policy import MAX_PARAMETERS, Policy, TrapPlacement
from silomix.runtime.core.protocol import shuffler, silo
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.core.protocol.messages import Manifest
from silomix.runtime.core.protocol.roundlog import Record, check_beginning, genesis
from silomix.runtime.core.protocol.rules import check_header, check_manifest, pin_problem
from silomix.runtime.render.capacity import COSTS, Place

PINS = {"schema": SCHEMA.digest.hex(), "parameters": SCHEMA.parameters}
HUGE = Schema((TensorSpec("a", (1 << 38,)), TensorSpec("b", (2,), buffer=True)))
RENAMED = Schema((TensorSpec("x", (5,)), SCHEMA.tensors[1]))
RESHAPED = Schema((TensorSpec("a", (5, 1)), SCHEMA.tensors[1]))
SWAPPED = Schema(SCHEMA.tensors[::-1])


def announced(f: Federation, schema: Schema) -> Manifest:
    return manifest(f, schema=schema, bounds=(f.policy.bound,) * len(schema.tensors))


def refused(f: Federation, schema: Schema) -> Reason | None:
    try:
        check_manifest(announced(f, schema), f)
    except PeerFault as fault:
        return fault.reason
    return None


def test_the_pinned_model_is_accepted() -> None:
    assert refused(federation(**PINS), SCHEMA) is None


@pytest.mark.parametrize("schema", [HUGE, RENAMED, RESHAPED, SWAPPED], ids=["huge", "renamed", "reshaped", "swapped"])
def test_another_schema_is_refused(schema: Schema) -> None:
    assert refused(federation(schema=PINS["schema"]), schema) is Reason.WRONG_SCHEMA
    assert refused(federation(**PINS), schema) is Reason.WRONG_SCHEMA
    assert refused(federation(), schema) is None  # without a pin it is up to the aggregator


def test_another_number_of_values_is_refused() -> None:
    counted = federation(parameters=PINS["parameters"])
    assert refused(counted, HUGE) is Reason.WRONG_SCHEMA
    assert refused(counted, Schema((TensorSpec("a", (6,)), SCHEMA.tensors[1]))) is Reason.WRONG_SCHEMA
    assert refused(counted, RENAMED) is None


def hop(f: Federation) -> shuffler.Shuffler:
    """Hop 1 with the keys that the manifest names."""
    found = shuffler.Shuffler(f, identity("hop-1"), rng())
    found.recall(shuffler.Stored(past(f).records[0]))
    found.recall(shuffler.KeysMade(1, 1, tuple((name, private("hop-1", name, 1)) for name in f.silo_names)))
    return found


def open_at_hop(f: Federation, m: Manifest) -> list[Any]:
    return list(hop(f).step(opening(m)))


def announce_at_silo(f: Federation, m: Manifest) -> list[Any]:
    told = silo.Silo(f, identity("silo-1"))
    told.recall(silo.Stored(past(f).records[0]))
    return list(told.step(silo.Announced(m)))


@pytest.mark.parametrize("told", [open_at_hop, announce_at_silo], ids=["hop", "silo"])
def test_an_aggregator_that_invents_a_model_of_2_to_the_38_gets_nothing_begun(told: Any) -> None:
    """Neither machine decides anything, so no driver allocates anything."""
    f = federation(**PINS)
    with pytest.raises(PeerFault) as caught:
        told(f, announced(f, HUGE))
    assert caught.value.reason is Reason.WRONG_SCHEMA
    assert str(HUGE.parameters) in caught.value.message
    assert told(f, announced(f, SCHEMA))  # the agreed one is begun


def begins(f: Federation, model: bytes) -> Record:
    """Record 0 with some model, as all hops would have stored it."""
    return counted(genesis(f, model, STATE).signed(identity(AGGREGATOR)), f)


def store_at_hop(f: Federation, record: Record) -> list[Any]:
    return list(shuffler.Shuffler(f, identity("hop-1"), rng()).step(shuffler.RecordIn(record)))


def hear_at_silo(f: Federation, record: Record) -> list[Any]:
    return list(silo.Silo(f, identity("silo-1")).step(silo.RecordsIn((record,))))


@pytest.mark.parametrize("told", [store_at_hop, hear_at_silo], ids=["hop", "silo"])
def test_a_history_begins_with_the_model_that_the_owners_agreed_on(told: Any) -> None:
    """R5: every later model follows from a sum. The first one does not: it could be crafted to tell of one silo."""
    f = federation(initial_model=MODEL.hex())
    assert told(f, begins(f, MODEL))
    with pytest.raises(PeerFault) as caught:
        told(f, begins(f, OTHER_MODEL))
    assert caught.value.reason is Reason.WRONG_MODEL
    assert caught.value.details["peer"] == AGGREGATOR
    assert MODEL.hex()[:16] in caught.value.message
    anybodys = federation()
    assert told(anybodys, begins(anybodys, OTHER_MODEL))  # without a pin it is the aggregator's word


def test_the_first_model_is_pinned_and_no_later_one() -> None:
    f = federation(initial_model=MODEL.hex())
    check_beginning(replace(begins(f, OTHER_MODEL), round=1), f)
    assert len({federation(initial_model=pin).digest for pin in ("", MODEL.hex(), OTHER_MODEL.hex())}) == 3


def test_the_pins_are_part_of_the_federations_digest() -> None:
    assert len({federation(**pins).digest for pins in ({}, PINS, {"parameters": 7})}) == 3


def test_a_policy_without_pins_has_no_problem_with_any_model() -> None:
    for schema in (SCHEMA, HUGE, RENAMED):
        assert pin_problem(schema, Policy()) == ""
        assert not pin_problem(schema, Policy(schema=schema.digest.hex(), parameters=schema.parameters))


def test_what_a_hop_can_hold_bounds_a_model_that_nobody_pinned() -> None:
    """Half a hundred gigabytes at the most, by what a hop was measured to take of a value."""
    for place in (Place.FIRST_HOP, Place.LATER_HOP):
        assert MAX_PARAMETERS * COSTS[place].bytes_per_parameter <= 64 << 30
    assert prod(HUGE.tensors[0].shape) > MAX_PARAMETERS


@pytest.mark.parametrize("placement", TrapPlacement)
def test_a_model_has_a_parameter_for_every_trap(placement: TrapPlacement) -> None:
    """Traps are drawn without replacement: from fewer parameters none could be."""
    span = SCHEMA.parameters if placement is TrapPlacement.RANDOM else 5
    for more, fits in ((0, True), (1, False)):
        policy = Policy(level=Level.MALICIOUS, traps=span + more, trap_placement=placement)
        assert (pin_problem(SCHEMA, policy) == "") is fits


def test_a_digest_that_is_refused_is_shown_as_it_is_written_elsewhere() -> None:
    f = federation()
    h = header(manifest(f), "silo-1")
    with pytest.raises(PeerFault) as caught:
        check_header(h, manifest(f, attempt=2), f)
    assert caught.value.reason is Reason.WRONG_MANIFEST
    assert h.manifest.hex()[:16] in caught.value.message
    assert manifest(f, attempt=2).digest.hex()[:16] in caught.value.message
