"""A Grid in memory, which keeps every message as its bytes, and the app of docs/flower.md before and after its diff."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "flower.md"
APP = ROOT / "docs" / "flower" / "app"


class InMemory(Grid):
    """Calls the clients in threads, and keeps what crossed the wire."""

    def __init__(self, app: ClientApp, clients: int, failing: Callable[[int, int], bool] = lambda *_: False) -> None:
        """`failing` says whether a client, by number, breaks down in a call, counted from 1."""
        self.app, self.clients, self.failing = app, clients, failing
        self.calls = 0
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # Flower's processes have these
        self.replies: list[bytes] = []
        """Every reply that reached the server, as the bytes of all objects in it."""

    def get_node_ids(self) -> list[int]:
        return list(range(1, self.clients + 1))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        if not messages:
            return []
        self.calls += 1
        with ThreadPoolExecutor(self.clients) as pool:
            replies = list(pool.map(self._call, messages))
        self.replies += [b"".join(o.deflate() for o in get_all_nested_objects(r).values()) for r in replies]
        return replies

    def _call(self, message: Message) -> Message:
        number = message.metadata.dst_node_id - 1
        config: UserConfig = {"partition-id": number, "num-partitions": self.clients}
        context = Context(run_id=1, node_id=number + 1, node_config=config, state=RecordDict(), run_config={})
        try:
            if self.failing(number, self.calls):
                raise RuntimeError("this client broke down")
            return self.app(message, context)
        except Exception as error:
            return Message(Error(0, str(error)), reply_to=message)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        raise NotImplementedError


SECRET = 0.123456789
"""What is looked for in messages: a number that every update has."""
EXAMPLES = 311
"""The smallest number of examples: as a value it is in no other place."""


def made_up(mods: list[Any]) -> ClientApp:
    """A client whose updates are known: client i changes the model by noise of its own, and weighs 311 + i."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        [arrays] = message.content.array_records.values()
        before = {name: array.numpy() for name, array in arrays.items()}
        after = {**before, **{name: before[name] + update(number)[name] for name in update(number)}}
        arrays = ArrayRecord({name: Array(np.asarray(array)) for name, array in after.items()})
        metrics = MetricRecord({"num-examples": EXAMPLES + number, "loss": SECRET})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": EXAMPLES, "accuracy": SECRET})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def update(number: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(number)
    weight = rng.uniform(-0.9, 0.9, (30, 10)).astype(np.float32)
    weight[0, 0] = SECRET
    return {"weight": weight, "scale": np.asarray(rng.uniform(-0.5, 0.5), np.float32), "batches": np.asarray(7)}


def first_model() -> ArrayRecord:
    rng = np.random.default_rng(99)
    arrays = {
        "weight": rng.normal(size=(30, 10)).astype(np.float32),
        "scale": np.asarray(1.0, np.float32),
        "batches": np.asarray(0),
    }
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def patched(directory: Path) -> Path:
    """Copy the page's app, and apply the page's diff to it."""
    diff = re.search(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert diff is not None
    shutil.copytree(APP, directory)
    subprocess.run(["git", "init", "-q", "."], cwd=directory, check=True)
    subprocess.run(["git", "apply", "-"], cwd=directory, input=diff[1], text=True, check=True)
    shutil.rmtree(directory / ".git")
    return directory


@contextmanager
def imported(directory: Path) -> Iterator[tuple[Any, Any]]:
    """Import an app's client and server."""
    sys.path.insert(0, str(directory))
    try:
        yield import_module("quickstart.client_app").app, import_module("quickstart.server_app").app
    finally:
        sys.path.remove(str(directory))
        for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
            del sys.modules[name]
