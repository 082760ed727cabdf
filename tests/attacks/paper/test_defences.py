"""Other defences: each trains, each leaves the source in the open."""

import numpy as np
import pytest
import torch

from silomix.attacks.audit.campaign import Campaign, run
from silomix.attacks.paper.defences import OWN_SHARE, blend, defences, task
from silomix.attacks.views.view import Mode
from silomix.runtime.core.policy import Policy
from silomix.runtime.task import TaskError, load_task


def test_every_defence_of_the_table_makes_a_task_that_trains() -> None:
    for one in defences(2):
        options = {"silo": 2, "seed": 6, "epochs": 1, **one.options}
        made = load_task("silomix.attacks.paper.defences:task", options)
        trained = made.train(made.initial(), 1)
        assert all(np.isfinite(tensor).all() for tensor in trained.tensors.values())


def test_blends_keep_the_label_and_hide_part_of_the_picture() -> None:
    x, y = torch.rand(50, 1, 8, 8), torch.arange(50)
    public = torch.zeros(20, 1, 8, 8)
    mixed, labels = blend((x, y), public, 3, 1)
    assert torch.equal(labels, y)
    share = (mixed / x).mean((1, 2, 3))
    assert share.max() <= OWN_SHARE / (1 - 0.0) + 0.36  # what the cap takes away is dealt out again
    assert (share < 1).all()
    assert torch.equal(blend((x, y), public, 1, 1)[0], x)
    assert torch.equal(mixed, blend((x, y), public, 3, 1)[0])


def test_dropout_does_not_stop_source_inference() -> None:
    base = Campaign(Policy(rounds=1, task_options={"epochs": 3}), seed=6, modes=(Mode.NONE,))
    (dropout,) = [one for one in defences(1) if one.strength == "p = 0.5"]
    assert run(dropout.applied(base)).outcomes[Mode.NONE].last.interval[0] > 0.2


def test_what_is_no_defence_is_refused() -> None:
    with pytest.raises(TaskError, match="instahide"):
        load_task("silomix.attacks.paper.defences:task", {"instahide": 0})
    with pytest.raises(ValueError, match="dropout"):
        task(dropout=1.0)
