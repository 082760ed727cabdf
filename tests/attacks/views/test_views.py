"""What the adversary holds in each mode, made of the silos' models with the core's code."""

import numpy as np
import pytest
from tests.attacks.networks import Net, records, truth

from silomix.attacks.errors import AttackError
from silomix.attacks.remap import reconstruct
from silomix.attacks.views.body import read_body
from silomix.attacks.views.classifier import Records
from silomix.attacks.views.simulated import view_of
from silomix.attacks.views.view import CONTROLS, EXPOSED, MEANINGS, PROTECTED, Mode, View
from silomix.runtime.core.numbers import residue
from silomix.runtime.core.numbers.plan import Encoding, Level

STEP = 1 / 9999
"""What one unit of an encoded value is worth, at r = 4 and a bound of 1."""


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def shadows(n: int = 5) -> list[Records]:
    return [records(8, i) for i in range(n)]


def flat(model: dict[str, np.ndarray], names: list[str]) -> np.ndarray:
    return np.concatenate([np.asarray(model[n]).reshape(-1) for n in names])


def test_every_mode_has_its_place() -> None:
    assert set(EXPOSED) | set(PROTECTED) | set(CONTROLS) == set(Mode) == set(MEANINGS)


@pytest.mark.parametrize("mode", [Mode.NONE, *CONTROLS])
def test_named_bodies_give_every_silos_model(mode: Mode) -> None:
    """The positive controls: quantisation is all that stands between them and the unprotected case."""
    true = truth()
    view = view_of(true, mode, rng())
    for found, expected in zip(reconstruct(view, [], Net()), true.trained, strict=True):
        for name in expected:
            assert np.abs(found[name] - expected[name]).max() <= STEP / 2 + 1e-6


@pytest.mark.parametrize("mode", [Mode.MODEL, Mode.LAYER, Mode.PARAMETER])
def test_shuffled_bodies_hold_every_value_and_nobodys_name(mode: Mode) -> None:
    true = truth()
    names = [t.name for t in true.schema.tensors]
    plain = np.stack([flat(update, names) for update in true.updates])
    view = view_of(true, mode, rng())
    assert view.rows is not None
    assert np.array_equal(np.sort(view.rows, axis=0), np.sort(plain, axis=0))
    owner = np.abs(view.rows[:, None, :] - plain[None]).argmin(axis=1)  # (rows, values): whose each value was
    kinds = {Mode.MODEL: 1, Mode.LAYER: len(names)}
    orders = {tuple(column) for column in owner.T}
    assert len(orders) <= kinds.get(mode, owner.shape[1])
    assert len(orders) > 30 or mode is not Mode.PARAMETER
    assert (owner != np.arange(5)[:, None]).any()


@pytest.mark.parametrize("mode", PROTECTED)
def test_protected_modes_show_the_mean_and_the_same_model_for_everybody(mode: Mode) -> None:
    true = truth()
    view = view_of(true, mode, rng())
    assert view.rows is None
    models = reconstruct(view, shadows(), Net())
    for name in models[0]:
        mean = np.mean([m[name] for m in true.trained], axis=0)
        assert np.abs(models[0][name] - mean).max() <= STEP / 2 + 1e-6
    assert all(np.array_equal(m[n], models[0][n]) for m in models for n in m)


def test_only_unary_shows_sums_that_are_not_reduced() -> None:
    true = truth()
    sums = view_of(true, Mode.UNARY, rng()).residue_sums
    assert sums is not None
    plan = true.plan(Encoding.UNARY, Level.TRUSTED)
    names = [t.name for t in true.schema.tensors]
    whole = np.rint(np.stack([flat(u, names) for u in true.updates]).astype(np.float64) * plan.v).astype(np.int64)
    expected = np.stack([(whole % m).sum(axis=0) for m in plan.moduli])
    assert np.array_equal(sums, expected)
    assert (sums >= np.array(plan.moduli)[:, None]).any()
    assert view_of(true, Mode.TRUSTED, rng()).residue_sums is None


def test_under_one_mask_bodies_are_noise_that_no_silo_sends() -> None:
    """All but one collude: what they open has nothing to do with any silo's update, and they can tell."""
    from silomix.attacks.views.simulated import _Masked

    true = truth()
    masked = _Masked.of(true, rng())
    names = [t.name for t in true.schema.tensors]
    update = flat(true.updates[0], names)
    under = masked.opened(0, (0, 1, 2))
    noise = residue.decode_sum(masked.codec.layout.residues(under), masked.codec.plan) * STEP
    assert np.abs(noise).max() > 2 * np.abs(update).max()
    assert abs(np.corrcoef(noise, update)[0, 1]) < 0.5
    assert read_body(masked.codec, under) is None
    opened = read_body(masked.codec, masked.opened(0, (0, 1, 2, 3)))
    assert opened is not None
    assert np.abs(opened - update).max() <= STEP / 2 + 1e-6


def test_what_does_not_fit_is_said() -> None:
    true = truth()
    with pytest.raises(AttackError, match="neither"):
        reconstruct(true.empty(), [], Net())
    view = view_of(true, Mode.MODEL, rng())
    with pytest.raises(AttackError, match="shadow sets"):
        reconstruct(view, shadows(2), Net())
    with pytest.raises(AttackError, match="cohort"):
        reconstruct(View(view.schema, (0, 1), view.before, rows=view.rows), [], Net())
