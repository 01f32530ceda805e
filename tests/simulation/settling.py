"""After the faults: whoever operates the servers settles what waits for a person, and every transaction ends."""

from __future__ import annotations

import asyncio

from tests.simulation.client import Client, Sent
from tests.simulation.servers import Cluster

from agenttx_server.engine.records import EffectState, TransactionId, TransactionStatus, UndoState
from agenttx_server.engine.requests import CommitRequest, EffectRequest, RollbackRequest

__all__ = ["settle_all"]

# Virtual seconds in which a transaction has to come to its end once nothing goes wrong any more.
PATIENCE_SECONDS = 400.0


async def settle_all(cluster: Cluster, operator: Client) -> None:
    """Bring every transaction to its end, its undo and its effects too."""
    await cluster.calm()
    await asyncio.gather(*(_settle(cluster, operator, item) for item in list(cluster.database.transactions)))
    world = cluster.world
    for _ in range(200):
        was_at_rest = not (world.running or _is_anything_untold(cluster) or _is_anything_under_way(cluster))
        if not was_at_rest or world.time() < world.stirred + 5.0:
            # What was done meanwhile may still be reported, and undone.
            await asyncio.sleep(5.0)
        if was_at_rest and not _is_pending(cluster):
            return
        for transaction_id in _is_pending(cluster):
            await _settle(cluster, operator, TransactionId(transaction_id))
    raise AssertionError(f"still pending: {cluster.world.running} {_is_pending(cluster)}")


def _is_anything_untold(cluster: Cluster) -> bool:
    """Whether a server has still to report what ended there: it waits for another one's work to end."""
    return any(server.coordinator._recovery._late_tools._given_up for server in cluster.servers)


def _is_anything_under_way(cluster: Cluster) -> bool:
    """Whether a server is at what its caller no longer waits for, such as undo that it tries again under its key."""
    return any(len(server.coordinator._tasks) for server in cluster.servers)


def _is_pending(cluster: Cluster) -> list[str]:
    return [
        transaction_id
        for transaction_id, stored in cluster.database.transactions.items()
        if not stored.record.status.is_terminal
        or any(effect.state is EffectState.READY for effect in stored.effects.values())
        or any(undo.state in (UndoState.LATE, UndoState.FAILED) for undo in stored.undo.values())
        or stored.record.owner
    ]


async def _settle(cluster: Cluster, operator: Client, transaction_id: TransactionId) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + PATIENCE_SECONDS
    random = operator.random
    wants_commit = random.random() < 0.6
    while True:
        stored = cluster.database.transactions[transaction_id]
        if loop.time() > end:
            raise AssertionError(
                f"{transaction_id} never ends: {stored.record}, {list(stored.undo.values())}, "
                f"{[effect.state for effect in stored.effects.values()]}"
            )
        view = await operator.view(transaction_id)
        if view is None:
            await asyncio.sleep(0.2)
            continue
        record = view.record
        status = record.status
        if await operator.see_to(view):
            continue
        if status is TransactionStatus.ACTIVE:
            number = operator.new_name("end")
            if wants_commit:
                await operator.tell(Sent(number, "commit", CommitRequest(transaction_id, number)))
                wants_commit = False
            else:
                request = RollbackRequest(transaction_id, accept_irreversible=True, request_id=number)
                await operator.tell(Sent(number, "rollback", request))
            continue
        if status.is_terminal:
            dead = [effect for effect in stored.effects.values() if effect.state is EffectState.DEAD]
            if dead and random.random() < 0.2:
                number = operator.new_name("again")
                effect_request = EffectRequest(transaction_id, dead[0].effect_id, request_id=number)
                await operator.tell(Sent(number, "requeue_effect", effect_request))
            if transaction_id not in _is_pending(cluster):
                return
        await asyncio.sleep(0.5)
