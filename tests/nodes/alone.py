"""One node of a federation without a network: a test makes its calls, and says what others answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf.message import Message
from tests.core.protocol.federations import SCHEMA, secret
from tests.net.contexts import Context

from silomix.runtime.config.keys import LogFormat
from silomix.runtime.config.kinds import Role
from silomix.runtime.config.load import NodeConfig
from silomix.runtime.config.owners.epochs import Proposal
from silomix.runtime.core.protocol.federation import Federation
from silomix.runtime.net.calls import Call, Unseen, check_length
from silomix.runtime.nodes.node import Node
from silomix.runtime.task import Trained

T = TypeVar("T")


class Little:
    """A task for the model of the tests' federations."""

    def __init__(self, schema: Any = SCHEMA) -> None:
        self._schema = schema

    def schema(self) -> Any:
        return self._schema

    def initial(self) -> dict[str, Any]:
        return {t.name: np.zeros(t.shape, np.float32) for t in SCHEMA.tensors}

    def train(self, tensors: Mapping[str, Any], round: int) -> Trained:  # noqa: A002 - as tasks have it
        return Trained({name: tensor + np.float32(0.25) for name, tensor in tensors.items()}, 10, {})

    def evaluate(self, tensors: Mapping[str, Any]) -> dict[str, float]:
        return {}


def config_of(directory: Path, f: Federation, name: str, **changes: Any) -> NodeConfig:
    """What a node of one of the tests' federations is started with, TLS apart; its key is the one that tests know."""
    directory.mkdir(parents=True, exist_ok=True)
    key = directory / "identity.pem"
    made = Ed25519PrivateKey.from_private_bytes(bytes(secret("identity", name).value))
    key.touch(0o600)
    key.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    role = Role.AGGREGATOR if name == f.aggregator.name else Role.SILO if name in f.silo_names else Role.SHUFFLER
    config = NodeConfig(
        file=directory / "node.toml",
        role=role,
        name=name,
        federation=f,
        history=(Proposal(f),),
        agreement=directory,
        directory=directory / "state",
        identity=key,
        identity_command=(),
        identity_token="",
        certificate=None,
        key=None,
        insecure=True,
        listen="",
        metrics_port=0,
        metrics_host="",
        metrics_training=False,
        before_round=(),
        required_hops=(),
        capture=None,
        traces="",
        log=LogFormat.CONSOLE,
        initial_model=None,
        evaluate=False,
        keep_models=1,
        keep_updates=False,
        linger=False,
        task_options={},
        mqtt=None,
    )
    return replace(config, **changes)


def alone(make: Callable[[], Node], work: Callable[[Any], Coroutine[Any, Any, T]], seconds: float = 20.0) -> T:
    """Make a node, have something done with it while its tasks may run, and let go of it."""

    async def go() -> T:
        node = make()
        try:
            async with asyncio.timeout(seconds), node.tasks:
                result = await work(node)
                for task in node.tasks._tasks:
                    task.cancel()
            return result
        except* BaseException as errors:
            first: BaseException = errors
            while isinstance(first, BaseExceptionGroup):
                first = first.exceptions[0]
            raise first from None
        finally:
            await node.close()

    return asyncio.run(go())


def call(peer: str, *messages: Message, method: str = "Method", silent: bool = False) -> tuple[Call, Context]:
    """A call that was let in, with what the peer sends, and whether it then stays silent; and what it is answered."""
    context = Context([message.SerializeToString() for message in messages], silent=silent)
    return Call(context, Unseen(), peer, method), context  # type: ignore[arg-type]


def ended(status: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    """How a call ends that a peer refuses or drops."""
    return grpc.aio.AioRpcError(status, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class Peers:
    """Stands for all lines of a node: answers by method, one story after the other; the last is told for ever."""

    def __init__(self, **stories: Iterable[Any]) -> None:
        self.stories = {name: list(story) for name, story in stories.items()}
        self.asked: list[tuple[str, Message | None]] = []
        self.patience: dict[str, float | None] = {}

    def __call__(self, name: str) -> "Peers":
        return self

    def _next(self, name: str, request: Message | None) -> Any:
        self.asked.append((name, request))
        story = self.stories[name]
        return story.pop(0) if len(story) > 1 else story[0]

    async def listen(self, what: Any, request: Message, kind: Any, limit: Any) -> AsyncGenerator[Any, None]:
        """Yield what the story has, if it is no longer than its kind may be; an error in it ends the call."""
        for part in self._next(what.name, request):
            if isinstance(part, BaseException):
                raise part
            if callable(limit):
                raw = part.SerializeToString()
                check_length(raw, limit(raw), what.name)
            yield part

    async def ask(self, what: Any, request: Message, kind: Any, limit: int, timeout_s: float) -> Any:
        answer = self._next(what.name, request)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def send(
        self, what: Any, frames: AsyncIterator[bytes], stream: int, limit: int, timeout_s: Any = None
    ) -> Any:
        """Take the whole stream in first, unless the story is a function, which is given the stream."""
        answer = self._next(what.name, None)
        self.patience[what.name] = timeout_s
        if callable(answer):
            answer = await answer(frames)
        else:
            async for _ in frames:
                pass
        if isinstance(answer, BaseException):
            raise answer
        return answer
