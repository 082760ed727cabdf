"""The attacks themselves, a module for each kind. To add a kind, name its module here."""

from silomix.attacks.active.acts import (
    answers,
    chains,
    cohorts,
    connections,
    copies,
    floods,
    greetings,
    history,
    leaving_out,
    lineage,
    models,
    passing,
    releases,
    roles,
    secrets,
)

__all__ = [
    "answers",
    "chains",
    "cohorts",
    "connections",
    "copies",
    "floods",
    "greetings",
    "history",
    "leaving_out",
    "lineage",
    "models",
    "passing",
    "releases",
    "roles",
    "secrets",
]
