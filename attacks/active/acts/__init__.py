"""The attacks themselves, a module for each kind. To add a kind, name its module here."""

from silomix.attacks.active.acts import bindings, chains, cohorts, floods, history, leaving_out, models, roles, secrets

__all__ = ["bindings", "chains", "cohorts", "floods", "history", "leaving_out", "models", "roles", "secrets"]
