"""Federated learning that hides which silo a record came from.

    >>> import silomix

    silomix.run(task, silos=5, rounds=20)   a federation on this machine, from a task to a trained model
    silomix.TorchTask(net, share, test)     a task from a torch module and its records; Task is the interface
    silomix.create(directory, ...)          write a federation, as `silomix init` does
    silomix.LocalFederation(directory)      run it, a process for each node
    silomix.InProcess(directory)            run it on this event loop
    silomix.simulate(policy, silos=10)      the same models without nodes
    silomix.audit(directory)                attack what its server has seen
    silomix.read_capture(path)              what a node has seen, message by message

Names are loaded when they are first used: a shuffler needs no torch, and `import silomix` loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from silomix.models.simulation.simulate import simulate
    from silomix.models.torch_task import TorchTask
    from silomix.runtime.capture.reader import read as read_capture
    from silomix.runtime.core.numbers.schema import Schema, TensorSpec
    from silomix.runtime.core.policy import Policy
    from silomix.runtime.front.audit import audit
    from silomix.runtime.front.run import Run, SilomixWarning, run
    from silomix.runtime.local import InProcess, LocalFederation, create
    from silomix.runtime.task import Task, Trained

__all__ = [
    "InProcess",
    "LocalFederation",
    "Policy",
    "Run",
    "Schema",
    "SilomixWarning",
    "Task",
    "TensorSpec",
    "TorchTask",
    "Trained",
    "audit",
    "create",
    "read_capture",
    "run",
    "simulate",
]

_PLACES = {
    "InProcess": "silomix.runtime.local",
    "LocalFederation": "silomix.runtime.local",
    "Policy": "silomix.runtime.core.policy",
    "Run": "silomix.runtime.front.run",
    "Schema": "silomix.runtime.core.numbers.schema",
    "SilomixWarning": "silomix.runtime.front.run",
    "Task": "silomix.runtime.task",
    "TensorSpec": "silomix.runtime.core.numbers.schema",
    "TorchTask": "silomix.models.torch_task",
    "Trained": "silomix.runtime.task",
    "audit": "silomix.runtime.front.audit",
    "create": "silomix.runtime.local",
    "read_capture": "silomix.runtime.capture.reader:read",
    "run": "silomix.runtime.front.run",
    "simulate": "silomix.models.simulation.simulate",
}
"""Where each name is, with what it is called there if that differs. A test holds it to the imports above."""


def __getattr__(name: str) -> Any:
    """Load a name when it is first used."""
    if name not in _PLACES:
        raise AttributeError(f"module 'silomix' has no attribute {name!r}")
    module, _, own = _PLACES[name].partition(":")
    found = globals()[name] = getattr(import_module(module), own or name)
    return found


def __dir__() -> list[str]:
    """List the public names, whether they are loaded or not."""
    return sorted(__all__)
