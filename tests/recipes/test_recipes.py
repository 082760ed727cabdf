"""docs/recipes: each file runs as its reader runs it, and prints what it says."""

import importlib
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.models.data.small_data import write_newsgroups

from silomix.runtime.nodes import aggregator

RECIPES = Path(__file__).resolve().parents[2] / "docs" / "recipes"
Recipe = Callable[[str], str]


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Recipe]:
    """Run a file as `python FILE` does, in an empty directory; the modules of others that it imports are forgotten."""
    monkeypatch.setattr(aggregator, "FAREWELL_S", 0.2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.setenv("SILOMIX_DATA", str(tmp_path / "data"))

    def run(name: str) -> str:
        capsys.readouterr()
        runpy.run_path(str(RECIPES / name), run_name="__main__")
        return capsys.readouterr().out

    yield run
    for path in RECIPES.glob("*.py"):
        sys.modules.pop(path.stem, None)


def accuracy(printed: str) -> list[float]:
    return [float(found) for found in re.findall(r"(?:accuracy|before) (\d\.\d+)", printed)]


def need(*modules: str) -> None:
    """Large packages that `make test` does not install: `pip install lightning transformers peft` adds them."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed; this recipe is for those who have it")


def test_every_recipe_is_listed_and_has_a_test() -> None:
    names = sorted(path.name for path in RECIPES.glob("*.py"))
    listed = (RECIPES / "README.md").read_text()
    tests = Path(__file__).read_text()
    for name in names:
        assert f"[{name}]({name})" in listed
        assert f'recipe("{name}")' in tests


@pytest.mark.full
def test_records_are_dealt_out_by_class(recipe: Recipe) -> None:
    printed = recipe("dirichlet_split.py")
    counts = [[int(n) for n in re.findall(r"\d+", line)[1:]] for line in printed.splitlines()[:5]]
    assert 1300 < sum(map(sum, counts)) < 1400  # a twentieth of 1,400 is held out
    assert max(max(row) / sum(row) for row in counts) > 0.3  # of ten classes: silos differ
    assert accuracy(printed)[0] > 0.6


def test_a_training_loop_of_ones_own(recipe: Recipe) -> None:
    after, before = accuracy(recipe("own_loop.py"))
    assert after > before + 0.3


@pytest.mark.filterwarnings("default")  # it has advice of its own
def test_a_lightning_module(recipe: Recipe) -> None:
    need("lightning")
    after, before = accuracy(recipe("lightning_module.py"))
    assert after > before + 0.3


@pytest.mark.filterwarnings("default")
def test_lora_on_text(recipe: Recipe, tmp_path: Path) -> None:
    need("transformers", "peft")
    write_newsgroups(tmp_path / "data" / "newsgroups")
    printed = recipe("lora_text.py")
    found = re.match(r"([\d,]+) of ([\d,]+) values travel", printed)
    assert found is not None
    sent, whole = (int(number.replace(",", "")) for number in found.groups())
    assert sent < whole / 20
    assert len(accuracy(printed)) == 2
    from_checkpoint = importlib.import_module("lora_text").adapted
    from_checkpoint(3).model.get_base_model().save_pretrained(tmp_path / "checkpoint")
    again = from_checkpoint(3, str(tmp_path / "checkpoint"), seed=2)
    assert any("lora_A" in name and parameter.requires_grad for name, parameter in again.named_parameters())


@pytest.mark.full
def test_privacy_has_a_price_and_says_what_it_buys(recipe: Recipe) -> None:
    printed = recipe("private.py")
    bought = [float(found) for found in re.findall(r"silos: epsilon (\d+\.\d+)", printed)]
    assert bought == pytest.approx([5, 50, 50], abs=0.01)
    tight, loose = (float(found) for found in re.findall(r"takes noise of (\d+\.\d+)", printed))
    assert tight > 5 * loose
    assert all(found > 0.15 for found in accuracy(printed))  # of ten classes


def test_an_audit_of_ones_own_task_takes_ten_lines(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        recipe("audit_own.py")
    assert "verdict: protected" in capsys.readouterr().out
    code = (RECIPES / "audit_own.py").read_text().split('"""')[2]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
