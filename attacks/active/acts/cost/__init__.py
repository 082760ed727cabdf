"""R7: what a peer can cost others, a module for each way."""

from silomix.attacks.active.acts.cost import answers, connections, floods, greetings, roles

__all__ = ["answers", "connections", "floods", "greetings", "roles"]
