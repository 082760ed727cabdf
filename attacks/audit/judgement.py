"""What an audit's numbers mean: protected, a leak, or nothing settled."""

from silomix.attacks.audit.jobs import Json
from silomix.attacks.views.view import CONTROLS, EXPOSED, PROTECTED, Mode


def verdict_on(report: Json) -> Json:
    """Judge: protected modes hold the random guess, exposed modes and controls do not, real captures likewise."""
    random = report["random"]
    findings: list[str] = []
    leaks: list[str] = []

    def expect(name: str, score: Json | None, hidden: bool, ours: bool = True) -> None:
        if score is None:
            return
        low, high, found = score["low"], score["high"], score["accuracy"]
        if hidden and not low <= random <= high:
            findings.append(f"{name}: {found:.1%} ({low:.1%} to {high:.1%}) is not a random guess of {random:.1%}")
            leaks.extend(findings[-1:] if ours else [])
        if not hidden and low <= random:
            findings.append(f"{name}: {found:.1%} ({low:.1%} to {high:.1%}) does not beat a random guess")

    sia = report.get("sia", {})
    for modes, hidden in ((PROTECTED, True), (EXPOSED, False), (CONTROLS, False)):
        for mode in modes:
            expect(f"mode {mode}", sia.get(str(mode)), hidden, mode is not Mode.UNARY)
    for one in report["real"]:
        random = 1 / one["silos"]
        name = f"captures, {one['granularity']}, {one['level']}"
        hidden = one["granularity"] in ("sum", "unary")
        summed = one["granularity"] == "sum"
        expect(f"{name}: what the aggregator captured", one["captured"]["last"], hidden, summed)
        expect(f"{name}: the unprotected updates", one["unprotected"] and one["unprotected"]["last"], False)
        expect(f"{name}: every hop colludes", one["all_collude"] and one["all_collude"]["last"], False)
        expect(f"{name}: all hops but one collude", one["all_but_one"] and one["all_but_one"]["last"], True)
    return {
        "protected": not findings,
        "leak": bool(leaks),
        "findings": findings,
        "text": _sentence(report, findings, leaks),
    }


def _sentence(report: Json, findings: list[str], leaks: list[str]) -> str:
    if leaks:
        return "LEAK. " + " ".join(f"{leak}." for leak in leaks)
    if findings:
        return "NOT SETTLED. Nothing leaked, but an attack or a control did not do what it should: see the findings."
    sia = report.get("sia")
    if not sia:
        return "PROTECTED. On what its aggregator captured the attack is a random guess; unprotected it works."
    ours, plain, control = (sia[str(m)]["accuracy"] for m in (Mode.SEMI_HONEST, Mode.NONE, Mode.ALL_COLLUDE))
    return (
        f"PROTECTED. Asked which silo a record came from, a server that runs silomix is right {ours:.1%} of the time, "
        f"as by rolling a die ({report['random']:.0%}). Unprotected, the same attack is right {plain:.1%} of the time, "
        f"and {control:.1%} if every hop of the chain betrays the silos."
    )
