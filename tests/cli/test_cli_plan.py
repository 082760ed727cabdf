"""`silomix plan`, the command line round it, and docs/paper.md, whose tables must stay what the tool computes."""

import json
import re
from collections.abc import Callable
from math import ceil, log2
from pathlib import Path
from typing import Any

import pytest

from silomix.attacks.paper.quotes import FINDINGS, FULL_MATCH, FULL_MATCH_RLE, MORE_CLIENTS
from silomix.attacks.paper.tables import matches, precisions_giving, printed_moduli
from silomix.models.simulation.simulate import pretend
from silomix.runtime.cli import entry
from silomix.runtime.core.numbers.costs import MODELS, paper_rle_bits, share_bits
from silomix.runtime.core.numbers.plan import Encoding, plan
from silomix.runtime.core.policy import Policy

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "paper.md").read_text()
Run = Callable[..., str]
ENCODINGS = [
    "vanilla",
    "unary",
    "first-primes",
    "first-primes+rle",
    "counts",
    "secure-aggregation",
    "secure-aggregation-table",
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command that succeeds, and return what it wrote."""

    def command(*argv: str) -> str:
        assert entry.main(argv) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out

    return command


def rows(out: str) -> dict[str, Any]:
    return {row["encoding"]: row for row in json.loads(out)["rows"]}


# --- a policy ---------------------------------------------------------------------------------------------------------


def test_a_plan_says_what_its_chain_holds_against(run: Run) -> None:
    said = run("plan", "--shufflers", "5", "--minimum-hops", "4")
    numbers = "holds against 2 that collude with the aggregator, and can be formed without 1"
    assert f"chain of 4 or more of 5 hops: {numbers}\n" in said


def test_json_of_a_plan(run: Run) -> None:
    out = run("plan", "--silos", "10", "--precision", "4", "--json")
    found = rows(out)
    assert list(found) == ENCODINGS
    assert {name: row["bits_per_parameter"] for name, row in found.items()} == {
        "vanilla": 32,
        "unary": 53,
        "first-primes": 58,
        "first-primes+rle": 22,
        "counts": 18,
        "secure-aggregation": 17 * 9,
        "secure-aggregation-table": 17 * 8,
    }
    assert found["unary"]["moduli"] == [5, 7, 8, 9, 11, 13]
    assert found["counts"] == {
        "encoding": "counts",
        "moduli": [512, 511],
        "bits_per_parameter": 18,
        "expansion": 18 / 32,
        "bytes": ceil(18 * 11_237_432 / 8),
        "note": "what silomix sends",
    }
    report = json.loads(out)
    assert report["model"] == {"name": "resnet18", "parameters": 11_237_432}
    assert report["policy"] == {
        "silos": 10,
        "precision": 4,
        "level": "semi-honest",
        "weight_levels": 1,
        "headroom": 0,
        "quantiser": "decimal",
        "largest_value": 9999,
        "sums": 199_981,
    }


def test_defaults_are_ten_silos_and_four_digits(run: Run) -> None:
    assert run("plan", "--json") == run("plan", "--silos", "10", "--precision", "4", "--json")


def test_every_flag_reaches_the_plan(run: Run) -> None:
    policy = ["--silos", "40", "--precision", "6", "--level", "malicious", "--weight-levels", "100", "--headroom", "3"]
    out = run("plan", *policy, "--parameters", "9", "--json")
    need = (2 * 40 * 100 * (10**6 - 1) + 1) << 3
    found = rows(out)["counts"]
    assert found["bytes"] == ceil(found["bits_per_parameter"] * 9 / 8)
    assert found["moduli"][0] * found["moduli"][1] >= need
    assert all(m % d for m in found["moduli"] for d in range(2, 1000) if d < m)
    assert json.loads(out)["model"] == {"name": None, "parameters": 9}
    int8 = rows(run("plan", "--quantiser", "int8", "--model", "mlp", "--json"))["counts"]
    assert (int8["bits_per_parameter"], int8["bytes"]) == (12, 12 * 14_210 // 8)


def test_the_rest_of_the_policy_says_what_a_round_is_like(run: Run) -> None:
    given = ["--silos", "12", "--rounds", "20", "--subsample", "0.75", "--group-size", "3", "--server", "median"]
    found = json.loads(run("plan", *given, "--deadline-s", "100", "--release-s", "20", "--attempts", "2", "--json"))
    assert found["round"] == {"rounds": 20, "invited": 9, "minimum_cohort": 7, "groups": 3, "longest_s": 240}
    early = ["--early-close", "0.9"]
    assert json.loads(run("plan", *early, "--json"))["round"]["early_close"] == 0.9
    assert "closed early, 1.5 times as long" in " ".join(run("plan", *early).split())
    noise = ["--clip-norm", "1", "--noise-multiplier", "0.5", "--precision", "3"]
    quiet, loud = (rows(run("plan", *more, "--precision", "3", "--json"))["counts"] for more in ([], noise))
    assert loud["bits_per_parameter"] > quiet["bits_per_parameter"]  # a federation makes room for its noise
    policy = Policy(clip_norm=1.0, noise_multiplier=0.5, precision=3)
    assert list(pretend(policy, 10, 0).plan.moduli) == loud["moduli"]
    out = run("plan", *noise, "--model", "mlp")
    assert re.search(r"noise spends epsilon \d+\.?\d* at delta 1e-05", out)
    assert "1 of the 1 bits of headroom are for the noise" in out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--server", "median"], '--server: found "median" of one mean'),
        (["--subsample", "0.1"], "--subsample: found 0.1, which invites 1 of 10 silos"),
        (["--bound", "auto", "--clip-norm", "1"], '--bound: found "auto" beside policy.clip_norm'),
        (["--rounds", "0"], "--rounds: found 0; give a whole number from 1"),
    ],
)
def test_a_plan_refuses_what_a_federation_would(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main(["plan", *given]) == 2
    assert said in capsys.readouterr().err


def test_the_table_has_every_row_and_survives_a_pipe(run: Run) -> None:
    out = run("plan", "--silos", "10000", "--precision", "16")
    for encoding in Encoding:
        moduli = plan(10_000, 16, encoding).moduli
        assert " ".join(map(str, moduli)) in out
    for name in ENCODINGS:
        assert name in out
    assert "669933" in out
    assert "too precise for float32" in out
    assert "\x1b" not in out


def test_too_precise_for_float32_is_said_only_when_it_is(run: Run) -> None:
    said = "too precise for float32"
    assert said not in run("plan", "--precision", "7")
    assert said in run("plan", "--precision", "8")
    assert said not in run("plan", "--precision", "8", "--quantiser", "int8")


def test_models_have_the_sizes_of_their_layers() -> None:
    """The paper's tables of architectures; ResNet-18's buffers are a mean, a variance and a counter per batch norm."""
    head = 512 * 128 + 128 + 128 * 10 + 10
    assert MODELS["mnist-cnn"].parameters == 32 * 25 + 32 + 64 * 32 * 25 + 64 + (64 * 16) * 512 + 512 + head
    assert MODELS["cifar10-cnn"].parameters == 32 * 75 + 32 + 64 * 32 * 25 + 64 + (64 * 25) * 512 + 512 + head
    convolutions, channels = [(3, 64, 7)], [64]
    for before, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        convolutions += [(before, width, 3), *[(width, width, 3)] * 3, *[(before, width, 1)] * (before != width)]
        channels += [width] * (4 + (before != width))
    weights = sum(a * b * k * k for a, b, k in convolutions) + 2 * sum(channels) + 512 * 100 + 100
    buffers = 2 * sum(channels) + len(channels)
    assert (weights, buffers) == (11_227_812, 9_620)
    assert MODELS["resnet18"].parameters == weights + buffers == 11_237_432


def test_shares_and_run_lengths() -> None:
    assert [share_bits(limit) for limit in (2, 3, 4, 5, 99_990)] == [ceil(log2(x)) for x in (2, 3, 4, 5, 99_990)]
    assert paper_rle_bits((2, 3, 4, 5)) == 2 + 2 + 3 + 3


def test_level_malicious_says_what_the_check_and_the_traps_cost(run: Run) -> None:
    found = json.loads(run("plan", "--level", "malicious", "--traps", "100", "--json"))
    assert found["check"]["rhos"] == [5]
    assert found["check"]["error_bits"] == [74]
    assert found["check"]["silo_bytes"] < 1024
    assert found["traps"]["detection"]["0.01"] == pytest.approx(1 - 0.99**100)
    shown = run("plan", "--level", "malicious", "--traps", "100")
    assert "except with probability 2^-74.0" in shown
    assert "1.0% of them 0.634" in shown
    plain = run("plan", "--level", "malicious")
    assert "tamper check finds" in plain
    assert "traps send" not in plain


def test_other_levels_have_no_check_and_no_traps(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run("plan", "--json"))
    assert found["check"] == found["traps"] == {}
    assert entry.main(["plan", "--traps", "5"]) != 0
    assert '--traps: found 5 at level "semi-honest"' in capsys.readouterr().err


# --- the paper --------------------------------------------------------------------------------------------------------


@pytest.fixture
def paper(run: Run) -> dict[str, Any]:
    report = json.loads(run("plan", "--paper", "--json"))
    return {section["id"]: section for section in report["sections"]} | {"summary": report["summary"]}


def cell(section: dict[str, Any], what: str, silos: int, r: int | None) -> dict[str, Any]:
    at = (what, silos, r)
    (found,) = (c for c in section["comparisons"] if (c["what"], c["silos"], c["precision"]) == at)
    assert isinstance(found, dict)
    return found


def test_every_difference_is_marked_and_explained(paper: dict[str, Any]) -> None:
    marks = {"agrees": 0, "differs": 0}
    for name in ("condition", "expansion", "bits-by-silos", "rounds", "more-clients", "in-text"):
        for c in paper[name]["comparisons"]:
            marks[c["mark"]] += 1
            assert bool(c["why"]) == (c["mark"] == "differs"), c
        assert all(s["mark"] == "plot only" for s in paper[name]["series"])
    assert marks == paper["summary"]
    assert min(marks.values()) > 0


def test_table_comm_cost_more_clients(paper: dict[str, Any]) -> None:
    section = paper["more-clients"]
    assert len(section["comparisons"]) == 6 * 4
    for n, r, sa, alg1, rle, vanilla in MORE_CLIENTS:
        wrong = (n, r) == (10_000, 8)
        c = (n * (10**r - 1) - 1).bit_length()
        shares = cell(section, "Secure Aggregation", n, r)
        assert (shares["paper"], shares["computed"], shares["mark"]) == (sa, c * (n - 1), "differs")
        assert sa == c * (n - 2)
        bits, run_lengths = cell(section, "Alg. 1", n, r), cell(section, "Alg. 1 + RLE", n, r)
        assert (bits["paper"], bits["mark"]) == (alg1, "differs" if wrong else "agrees")
        assert (run_lengths["paper"], run_lengths["mark"]) == (rle, "differs" if wrong else "agrees")
        assert cell(section, "Vanilla FL", n, r)["paper"] == cell(section, "Vanilla FL", n, r)["computed"] == vanilla
    row_two = cell(section, "Alg. 1", 10_000, 8)
    assert (row_two["computed"], row_two["also"]["unary"]) == (197, 172)
    assert "infeasible" in row_two["why"]
    run_lengths = cell(section, "Alg. 1 + RLE", 10_000, 8)
    assert (run_lengths["computed"], run_lengths["also"]) == (49, {"first-primes packed": 48, "counts": 41})


def test_expansion_factors_belong_to_other_precisions(paper: dict[str, Any]) -> None:
    section = paper["expansion"]
    for what, r, quoted in (*FINDINGS, FULL_MATCH):
        found = cell(section, what, 10, r)
        assert (found["paper"], found["mark"]) == (float(quoted), "differs")
        assert found["computed"] == plan(10, r, Encoding.FIRST_PRIMES).bits_per_parameter / 32
    assert [precisions_giving(quoted) for quoted in ("1.04", "1.28", "1.81", "2.4")] == [[], [3], [4], [5]]
    assert precisions_giving("1.03", paper_rle_bits) == [6, 7]
    assert cell(section, "BERT in 8 bits", 10, None)["mark"] == "agrees"
    # Where 1.28 and 1.81 come from: Alg. 1's condition as printed, at the precisions that the paper names.
    assert [sum(printed_moduli(10, r)) / 32 for r in (4, 5)] == [41 / 32, 58 / 32]


def test_curves_are_computed_in_full(paper: dict[str, Any]) -> None:
    for series, r in zip(paper["bits-by-silos"]["series"], (4, 8), strict=True):
        points = [dict(zip(series["columns"], row, strict=True)) for row in series["rows"]]
        assert [p["silos"] for p in points] == list(range(2, 101))
        for p in points[::14]:
            assert p["unary"] == plan(p["silos"], r, Encoding.UNARY).bits_per_parameter
            assert p["counts"] == plan(p["silos"], r).bits_per_parameter
    by_silos, ten, million = paper["rounds"]["series"]
    assert by_silos["rows"][-1] == [10**6, 15, 13, 3]
    assert [row[0] for row in ten["rows"]] == [row[0] for row in million["rows"]] == list(range(1, 17))
    assert ten["rows"][3] == [4, 7, 6, 2]


def test_claims_in_the_text(paper: dict[str, Any]) -> None:
    claims = paper["bits-by-silos"]["comparisons"]
    assert [(c["precision"], c["paper"], c["computed"]) for c in claims] == [
        (4, 23, 26),
        (8, 78, 97),
        (4, "never", 5),
        (8, 5, 6),
    ]
    assert [c["also"] for c in claims[2:]] == [{"unary": 4}, {"unary": 5}]
    alg1, rle, shares = paper["in-text"]["comparisons"]
    assert [(c["paper"], c["mark"]) for c in (alg1, rle, shares)] == [(440, "agrees"), (79, "agrees"), (83, "agrees")]
    assert [c["computed"] for c in paper["condition"]["comparisons"]] == [199_981, 199_981]


def test_quotations_are_matched_to_their_own_decimals() -> None:
    assert matches("2.4", 77 / 32)
    assert not matches("2.40", 77 / 32)
    assert not matches("1.04", 33 / 32)


def test_the_paper_as_tables(run: Run) -> None:
    out = run("plan", "--paper")
    assert "differs (1)" in out
    assert "plot only" in out
    assert "12 of 99 points" in out
    for number in ("399920", "399960", "197", "172", "200560490130"):
        assert number in out


# --- docs/paper.md ----------------------------------------------------------------------------------------------------


def doc_table(heading: str) -> list[list[str]]:
    """The cells under a heading, without the two lines of the table's head."""
    section = DOC.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines[2:]]


def test_doc_more_clients_is_what_the_tool_computes(paper: dict[str, Any]) -> None:
    section = paper["more-clients"]
    expected = []
    for n, r, *_ in MORE_CLIENTS:
        sa, bits, rle = (cell(section, what, n, r) for what in ("Secure Aggregation", "Alg. 1", "Alg. 1 + RLE"))
        numbers = [n, r, sa["paper"], sa["computed"], bits["paper"], bits["computed"], bits["also"]["unary"]]
        numbers += [rle["paper"], rle["computed"], rle["also"]["first-primes packed"], rle["also"]["counts"]]
        expected.append([str(number) for number in numbers])
    assert doc_table("Bits per silo and parameter, more clients") == expected


def test_doc_expansion_is_what_the_tool_computes(paper: dict[str, Any]) -> None:
    expected = []
    for what, r, quoted in (*FINDINGS, FULL_MATCH, FULL_MATCH_RLE):
        c = cell(paper["expansion"], what, 10, r)
        belongs = precisions_giving(quoted, paper_rle_bits if "RLE" in what else sum)
        factors = [f"{x:.2f}" for x in (c["paper"], c["computed"], c["also"]["unary"], c["also"]["counts"])]
        expected.append([what, str(r), *factors[:2], ", ".join(map(str, belongs)) or "-", *factors[2:]])
    assert doc_table("Expansion against 32 bits, 10 clients") == expected


def test_doc_prose_has_the_computed_numbers(paper: dict[str, Any]) -> None:
    row_two = cell(paper["more-clients"], "Alg. 1", 10_000, 8)
    bert = cell(paper["expansion"], "BERT in 8 bits", 10, None)
    extra4, extra8, cheaper4, cheaper8 = paper["bits-by-silos"]["comparisons"]
    text = " ".join(DOC.split())
    for number in re.findall(r"\d{6,}", row_two["why"]):
        assert number in text
    for sentence in (
        f"The least sum takes {bert['also']['unary']:.2f}, and counts {bert['also']['counts']:.2f}",
        f"costs {extra4['computed']} bits more than vanilla at r = 4 and {extra8['computed']} at r = 8",
        f"about {extra4['paper']} and {extra8['paper']}",
        *(f"between {' and '.join(map(str, c['also'].values()))}" for c in (extra4, extra8)),
        f"fewer than {cheaper4['computed']} clients at r = 4 and fewer than {cheaper8['computed']} at r = 8",
        "with 53 bits where the first primes take 58",
    ):
        assert sentence in text
