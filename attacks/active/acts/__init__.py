"""The attacks themselves, a module for each kind. To add a kind, name its module here."""

from silomix.attacks.active.acts import (
    chains,
    cohorts,
    copies,
    cost,
    history,
    leaving_out,
    lineage,
    models,
    passing,
    releases,
    secrets,
)

__all__ = [
    "chains",
    "cohorts",
    "copies",
    "cost",
    "history",
    "leaving_out",
    "lineage",
    "models",
    "passing",
    "releases",
    "secrets",
]
