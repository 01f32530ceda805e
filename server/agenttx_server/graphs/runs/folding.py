"""Folds for runs: where a reducer of the deployment is asked, in a thread, as its code may take its time.

The server's own reducers are quick and bounded by the size of the state; they run where they are called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from agenttx.tools.blocking_pool import BlockingPool
from agenttx_server.graphs.compiled_graph import CompiledGraph
from agenttx_server.graphs.errors import FoldError
from agenttx_server.graphs.fold import ChannelOrigin, Folded, State, TaskWrites, fold
from agenttx_server.graphs.reducers.custom import CustomReducer

__all__ = ["folded_aside"]

LONGEST_SECONDS = 30.0
"""After which a fold has failed. Its thread can't be stopped, and goes on to its end."""
_THREADS = 4

_pool = BlockingPool(_THREADS, "agenttx-reducer")
_late: set[asyncio.Task[Folded]] = set()


async def folded_aside(
    graph: CompiledGraph,
    state: State,
    writes: Sequence[TaskWrites],
    origins: Mapping[str, ChannelOrigin] | None = None,
    *,
    keep_ephemeral: bool = False,
) -> Folded:
    """Fold as :func:`.fold.fold` does; the server goes on with other work while a custom reducer runs.

    Raises FoldError, also (REDUCER_FAILED) for reducers that take longer than LONGEST_SECONDS, the wait for a thread
    included.
    """
    work = partial(fold, graph, state, writes, origins, keep_ephemeral=keep_ephemeral)
    slow = _custom_channels(graph, writes)
    if not slow:
        return work()
    folding = asyncio.ensure_future(_pool.run(work))
    try:
        await asyncio.wait((folding,), timeout=LONGEST_SECONDS)
    except asyncio.CancelledError:
        _let_go(folding)
        raise
    if folding.done():
        return folding.result()
    _let_go(folding)
    raise FoldError(
        "REDUCER_FAILED",
        f"the reducers of {', '.join(slow)} took longer than {LONGEST_SECONDS:g} s",
        {"channel": slow[0]},
    )


def _custom_channels(graph: CompiledGraph, writes: Sequence[TaskWrites]) -> list[str]:
    written = {name for write in writes for update in write.updates for name in update}
    return sorted(name for name in written if isinstance(graph.reducers.get(name), CustomReducer))


def _let_go(folding: asyncio.Task[Folded]) -> None:
    """Nobody waits for a fold any more; it ends when its reducers do."""
    folding.cancel()
    _late.add(folding)
    folding.add_done_callback(_seen)


def _seen(folding: asyncio.Task[Folded]) -> None:
    _late.discard(folding)
    if not folding.cancelled():
        folding.exception()
