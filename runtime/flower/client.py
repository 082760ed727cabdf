"""The client's side: a mod that hands what a training changed to the silo beside it, and takes it out of the reply."""

from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from silomix.runtime.config.load import load_federation, load_node
from silomix.runtime.core.errors import UserError
from silomix.runtime.flower.arrays import NAME, announced, change, only_arrays, question
from silomix.runtime.outside.door import submit

PARTITION = "partition-id"
"""What Flower's simulation numbers its nodes by."""
MARGIN_S = 60.0


def protect(directory: Path | str | None = None, *, weighted_by: str = "num-examples", evaluate: bool = False) -> Mod:
    """Return a mod for ClientApp(mods=[...]): nothing of an update reaches Flower's server.

    directory    the federation's directory, whose silos are the nodes of a simulation in their order; a SuperNode's
                 owner names the silo instead: --node-config 'silomix="fed/silo-01"'
    weighted_by  the metric that has the number of examples
    evaluate     let replies to other messages than train pass: they carry each client's metrics in clear
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        kind = message.metadata.message_type.partition(".")[0]
        if kind != "train":
            if evaluate:
                return call_next(message, context)
            raise UserError(
                f"a reply to {kind} would tell the server this client's own metrics: evaluate at the server "
                "(evaluate_fn), or let it pass with protect(evaluate=True)"
            )
        (number, stay), asked = announced(message), question(message)  # before the training, which may take long
        before = only_arrays(message.content, "the message")
        silo = _silo(context, directory)
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        vector = change(before, only_arrays(reply.content, "the reply"), stay)
        policy = load_node(silo).federation.policy
        examples = _examples(reply.content, weighted_by) if policy.weight_levels > 1 else 1
        patience_s = policy.attempts * (policy.deadline_s + policy.release_s) + MARGIN_S
        submit(silo, vector, number, examples=examples, question=asked, clip=True, timeout_s=patience_s)
        return Message(RecordDict({NAME: ConfigRecord({"round": number})}), reply_to=message)

    return mod


def _silo(context: Context, directory: Path | str | None) -> Path:
    """Find the directory of this node's silo."""
    own = context.node_config.get(NAME)
    if isinstance(own, str):
        return Path(own)
    part = context.node_config.get(PARTITION)
    if directory is None or not isinstance(part, int):
        raise UserError(
            "this node does not say which silo it is: start the SuperNode with "
            "--node-config 'silomix=\"fed/silo-01\"', the directory of the silo on its host"
        )
    names = load_federation(Path(directory)).silo_names
    if part >= len(names):
        raise UserError(f"this is node {part} of the simulation, and {directory} has {len(names)} silos: make as many")
    return Path(directory) / names[part]


def _examples(content: RecordDict, weighted_by: str) -> int:
    found = [record[weighted_by] for record in content.metric_records.values() if weighted_by in record]
    if len(found) != 1 or not isinstance(found[0], int | float) or found[0] != int(found[0]):
        raise UserError(
            f'the reply has no whole number "{weighted_by}" in its metrics, by which the policy weighs silos: put it '
            "there, or agree on weight_levels = 1"
        )
    return int(found[0])
