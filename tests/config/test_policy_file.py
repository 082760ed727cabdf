"""The policy in the federation file: every key survives it, counts in the digest, and is checked."""

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tests.config.written import CHANGES, NEEDS, edit, error_of, line_of, public

from silomix.runtime.config.keys import NODE_KEYS, POLICY_KEYS
from silomix.runtime.config.load import NodeConfig, load_federation, load_node
from silomix.runtime.config.owners.assemble import dump_federation
from silomix.runtime.config.owners.trial import init
from silomix.runtime.config.tables import ConfigError
from silomix.runtime.core.numbers.plan import Encoding, Level
from silomix.runtime.core.policy import AUTO, Policy, Server
from silomix.runtime.core.policy import KEYS as POLICY
from silomix.runtime.core.protocol.federation import Federation


def test_every_policy_field_has_a_key_and_a_change() -> None:
    assert {f.name for f in fields(Policy)} == set(POLICY_KEYS) == set(CHANGES)
    assert {f.name for f in fields(NodeConfig)} - {"file", "history"} == set(NODE_KEYS)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_policy_field_survives_the_file_and_changes_the_digest(made: Path, tmp_path: Path, name: str) -> None:
    federation = load_federation(made)
    policy = Policy(**{name: CHANGES[name]}, **NEEDS.get(name, {}))
    changed = replace(federation, policy=policy)
    dump_federation(changed, tmp_path / "federation.toml")
    loaded = load_federation(tmp_path / "federation.toml")
    assert loaded == changed
    assert loaded.digest == changed.digest
    assert loaded.digest != replace(federation, policy=Policy(**NEEDS.get(name, {}))).digest


def test_a_whole_number_is_the_same_policy_as_its_float(home: Path) -> None:
    before = load_federation(home).digest
    edit(home / "federation.toml", "bound = 1.0", "bound = 1")
    assert load_federation(home).digest == before


def test_comments_do_not_change_the_digest_and_keys_anchor_and_order_do(home: Path, tmp_path: Path) -> None:
    file = home / "federation.toml"
    before = load_federation(file)
    edit(file, "# Rounds", "# rounds, says the owner of silo-01,")
    assert load_federation(file).digest == before.digest
    variants: Sequence[Federation] = [
        replace(before, name="other"),
        replace(before, anchor=before.anchor + b"\n"),
        replace(before, shufflers=before.shufflers[::-1]),
        replace(before, shufflers=before.shufflers[:1]),
        replace(before, silos=before.silos[::-1]),
        replace(before, anchor=b"", pinned=True),
        replace(before, owners=(replace(before.owners[0], key=public(2)),)),
        replace(before, aggregator=replace(before.aggregator, key=public(1))),
        replace(before, aggregator=replace(before.aggregator, address="[::1]:7000")),
    ]
    digests = {before.digest}
    for i, variant in enumerate(variants):
        copy = tmp_path / str(i)
        copy.mkdir()
        dump_federation(variant, copy / "federation.toml")
        digests.add(load_federation(copy).digest)
    assert len(digests) == len(variants) + 1


def test_a_later_key_at_its_default_is_neither_in_the_file_nor_in_the_digest(made: Path) -> None:
    """A node of an earlier version, which does not know the key, reads the file and computes the same digest."""
    later = [name for name, key in POLICY.items() if key.later]
    assert later
    text = (made / "federation.toml").read_text(encoding="utf-8")
    known = set(json.loads(Policy().canonical()))
    assert known == {name for name, key in POLICY.items() if not key.later}
    for name in later:
        assert f"\n# {name} = " in text
        assert f"\n{name} = " not in text
        assert set(json.loads(Policy(**{name: CHANGES[name]}).canonical())) == {*known, name}


def test_the_written_file_explains_every_policy_key(made: Path) -> None:
    text = " ".join((made / "federation.toml").read_text(encoding="utf-8").replace("\n# ", " ").split())
    for key in POLICY_KEYS.values():
        assert key.what in text


WRONG_POLICY: Sequence[tuple[str, str, str]] = [
    ("task", '"nothing"', "package.module:factory"),
    ("task", "3", "package.module:factory"),
    ("rounds", "0", "1 to 1000000"),
    ("rounds", "true", "found true; give a whole number"),
    ("rounds", "1.0", "found 1.0; give a whole number"),
    ("rounds", '"10"', "found '10'; give a whole number"),
    ("rounds", "[1]", "found [1]"),
    ("rounds", "{}", "found a table"),
    ("rounds", "0x" + "f" * 5000, "found a number of 20000 bits"),
    ("precision", "19", "1 to 18"),
    ("quantiser", '"int4"', '"int8"'),
    ("encoding", "[]", '"counts"'),
    ("level", '"honest"', '"semi-honest"'),
    ("update", '"gradient"', '"delta"'),
    ("bound", "0", "above 0"),
    ("bound", "inf", "finite"),
    ("bound", "nan", "finite"),
    ("bound", '"1"', "found '1'"),
    ("bound", '"automatic"', "found 'automatic'"),
    ("weight_levels", "0", "from 1"),
    ("headroom", "-1", "from 0"),
    ("granularity", '"sums"', '"sum"'),
    ("granularity", '"layer"', 'policy.level = "trusted"'),
    ("minimum_cohort", "2", "from 3"),
    ("minimum_cohort", "5", "at most 4, the number of [[silos]]"),
    ("cohort_step", "-1", "from 0"),
    ("cohort_step", "1.5", "a whole number"),
    ("quorum", "0", "above 0 and at most 1"),
    ("quorum", "1.1", "above 0 and at most 1"),
    ("early_close", "1.1", "from 0 to 1"),
    ("early_close", "-0.1", "from 0 to 1"),
    ("minimum_hops", "-1", "from 0"),
    ("minimum_hops", "1", "need not share an honest hop"),
    ("minimum_hops", "3", "from a pool of 2"),
    ("deadline_s", "0", "1 to 604800"),
    ("deadline_s", "604801", "1 to 604800"),
    ("release_s", "0", "1 to 604800"),
    ("attempts", "0", "from 1"),
    ("group_size", "2", "0, or a whole number from 3"),
    ("group_size", "false", "found false"),
    ("group_size", "5", "invites 4"),
    ("subsample", "0.0", "above 0"),
    ("subsample", "0.5", "policy.minimum_cohort = 3"),
    ("chunk_parameters", "24", "multiple of 16 from 16 to 1048576"),
    ("chunk_parameters", "0", "multiple of 16"),
    ("chunk_parameters", "1048592", "multiple of 16"),
    ("server", '"adamw"', '"adam"'),
    ("server", '"median"', "policy.group_size"),
    ("server_lr", "0", "above 0"),
    ("server_momentum", "1", "below 1"),
    ("server_beta2", "-0.1", "from 0"),
    ("server_epsilon", "0", "above 0"),
    ("clip_norm", "-1", "from 0"),
    ("noise_multiplier", "nan", "finite"),
    ("noise_multiplier", "1", "policy.clip_norm"),
    ("schema", '"ab"', "64 hex digits"),
    ("schema", f'"{"AB" * 32}"', "64 hex digits of 0-9 and a-f"),
    ("parameters", "-1", "from 0"),
    ("task_package", '"silomix"', "name==version"),
    ("task_digest", '"ab"', "64 hex digits"),
    ("initial_model", '"ab"', "64 hex digits"),
    ("traps", "101", "0 to 100"),
    ("traps", "3", 'at level "semi-honest"; give 0, or policy.level = "malicious"'),
    ("trap_placement", '"first"', '"last-layer"'),
    ("trap_placement", '"last-layer"', "beside policy.traps = 0"),
    ("parameters", str((1 << 33) + 1), "from 0 to 8589934592"),
]


@pytest.mark.parametrize(("name", "value", "says"), WRONG_POLICY)
def test_wrong_policy_values_name_file_key_and_what_is_allowed(home: Path, name: str, value: str, says: str) -> None:
    file = home / "federation.toml"
    start = f"# {name} = " if POLICY[name].later else f"{name} = "
    edit(file, line_of(file, start), f"{name} = {value}")
    for load, path in ((load_federation, file), (load_node, home / "silo-01")):
        error = error_of(load, path)
        assert error.key == f"policy.{name}"
        assert error.file.samefile(file)
        assert f"policy.{name}: " in str(error)
        assert says in str(error)


def test_the_tamper_check_is_about_one_sum(tmp_path: Path) -> None:
    """In groups the scalars would show who is in which; a level whose check is not made is never accepted."""
    rule = Policy(level=Level.MALICIOUS, group_size=3)
    with pytest.raises(ConfigError, match=r'policy\.level: found "malicious" with groups'):
        init(tmp_path / "groups", 6, 2, name="demo", policy=rule, insecure=True)
    rule = Policy(level=Level.MALICIOUS, encoding=Encoding.FIRST_PRIMES, chunk_parameters=16)
    with pytest.raises(ConfigError, match=r"policy\.chunk_parameters: found 16; level malicious needs 73"):
        init(tmp_path / "short", 6, 2, name="demo", policy=rule, insecure=True)
    init(tmp_path / "good", 6, 2, name="demo", policy=Policy(level=Level.MALICIOUS), insecure=True)


def test_a_median_needs_two_groups(tmp_path: Path) -> None:
    """The median of one group's mean is that mean: a rule that promises more than it does is refused."""
    rule = Policy(server=Server.MEDIAN, group_size=3)
    with pytest.raises(ConfigError, match=r'policy\.server: found "median" of one group: 5 silos'):
        init(tmp_path / "five", 5, 1, name="demo", policy=rule, insecure=True)
    init(tmp_path / "six", 6, 1, name="demo", policy=rule, insecure=True)
    init(tmp_path / "mean", 5, 1, name="demo", policy=Policy(group_size=3), insecure=True)


def test_the_table_of_wrong_values_leaves_no_policy_key_out() -> None:
    assert {name for name, _, _ in WRONG_POLICY} == set(POLICY_KEYS) - {"task_options"}


def test_a_plan_that_cannot_hold_names_the_policy_keys(home: Path) -> None:
    file = home / "federation.toml"
    edit(file, "precision = 4", "precision = 18")
    edit(file, "weight_levels = 1", "weight_levels = 1000")
    error = error_of(load_federation, file)
    for part in (str(file), "policy.precision = 18", "policy.weight_levels = 1000", "policy.headroom = 0"):
        assert part in str(error)


def test_groups_are_of_sums(home: Path) -> None:
    file = home / "federation.toml"
    edit(file, 'level = "semi-honest"', 'level = "trusted"')
    edit(file, 'granularity = "sum"', 'granularity = "model"')
    load_federation(file)
    edit(file, "group_size = 0", "group_size = 3")
    assert error_of(load_federation, file).key == "policy.group_size"
    edit(file, 'granularity = "model"', 'granularity = "sum"')
    load_federation(file)


def test_a_file_may_leave_bounds_to_the_model(home: Path) -> None:
    file = home / "federation.toml"
    edit(file, line_of(file, "bound = "), 'bound = "auto"')
    assert load_federation(file).policy.bound == AUTO
