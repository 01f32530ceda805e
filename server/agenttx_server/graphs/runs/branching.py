"""Time travel: a checkpoint as the start of a branch. Nothing is undone; the old branch stays as it is.

The branch has a transaction of its own. Where that of the checkpoint isn't committed, the new one begins with a copy
of what was written to the store up to there.
"""

from __future__ import annotations

from agenttx_server.engine.frozen import dataclass, replace
from agenttx_server.graphs.boundary import Work
from agenttx_server.graphs.runs.invocation import RunParts
from agenttx_server.graphs.runs.position import Position, in_new_transaction, position_at
from agenttx_server.graphs.runs.records import CheckpointRecord, ThreadRecord, checkpoint_number
from agenttx_server.graphs.runs.requests import no_checkpoint
from agenttx_server.graphs.tasks import Activation

__all__ = ["Branch", "branch_at", "branch_of", "find_checkpoint", "on_branch"]


@dataclass(frozen=True, slots=True)
class Branch:
    """Where a branch starts; ``copies`` are the transaction and its last step whose store writes it begins with."""

    checkpoint: CheckpointRecord
    position: Position
    copies: tuple[str, int] | None


async def branch_of(parts: RunParts, thread: ThreadRecord, name: str) -> Branch:
    """Make a checkpoint the start of a branch. Raises RunRefused: CHECKPOINT_NOT_FOUND."""
    return await branch_at(parts, await find_checkpoint(parts, thread, name))


async def branch_at(parts: RunParts, checkpoint: CheckpointRecord) -> Branch:
    """As :func:`branch_of`, of a checkpoint that is known."""
    at = in_new_transaction(await position_at(parts.store, checkpoint))
    source, last_step = checkpoint.transaction_id, checkpoint.next_step - 1
    copies = None
    if last_step > 0 and await parts.transactions.is_open(source):
        copies = (source, last_step)
    # The copy is the first step of the branch.
    position = replace(at, work=_anew(at.work), next_step=1 if copies is None else 2)
    return Branch(checkpoint, position, copies)


async def find_checkpoint(parts: RunParts, thread: ThreadRecord, name: str) -> CheckpointRecord:
    """Return a checkpoint of a thread by its id, "" for the head. Raises RunRefused: CHECKPOINT_NOT_FOUND."""
    number = checkpoint_number(thread.thread_id, name) if name else thread.head
    found = None if number is None else await parts.store.load_checkpoint(thread.thread_id, number)
    if found is None:
        raise no_checkpoint(thread.thread_id, name)
    return found


def on_branch(thread: ThreadRecord) -> ThreadRecord:
    """A thread on a new branch, which its next checkpoint begins."""
    return replace(thread, branch=f"b-{thread.next_number}")


def _anew(work: Work) -> Work:
    """The same work for another branch: tasks that went on under their ids there have new ones here."""
    return replace(
        work,
        activations=tuple(Activation(item.node, item.arg, given=item.given) for item in work.activations),
        deferred=tuple(Activation(item.node, item.arg) for item in work.deferred),
    )
