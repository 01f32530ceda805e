"""What is asked to change threads, as the graph runtime takes it. Every function raises InvalidRequest."""

from __future__ import annotations

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.request_reader import RequestReader
from agenttx_server.api.message_conversion.run_requests import (
    LONGEST_ID_BYTES,
    LONGEST_NAME_BYTES,
    LONGEST_THREAD_BYTES,
    channels,
    fingerprint,
    request_of,
    targets,
    thread_id_of,
)
from agenttx_server.graphs.runs.records import RequestRecord
from agenttx_server.graphs.runs.requests import CopyRequest, ForkRequest, StateUpdate, UpdateRequest
from agenttx_server.graphs.runs.run_rewinder import RewindRunRequest

__all__ = [
    "copy_request",
    "delete_request",
    "fork_request",
    "prune_request",
    "rewind_request",
    "update_request",
]

MOST_SUPERSTEPS = 1_000
MOST_UPDATES = 10_000


def update_request(message: pb.UpdateStateRequest, principal: str) -> UpdateRequest:
    """Return what UpdateState asks."""
    reader = RequestReader()
    reader.identifier("request_id", message.request_id, LONGEST_ID_BYTES)
    thread_id = thread_id_of(message.thread_id, reader)
    reader.name("graph", message.graph, LONGEST_NAME_BYTES)
    reader.name("version", message.version, LONGEST_ID_BYTES)
    reader.name("checkpoint_id", message.checkpoint_id, LONGEST_NAME_BYTES)
    if not message.supersteps:
        reader.refuse("supersteps", "is empty")
    if len(message.supersteps) > MOST_SUPERSTEPS:
        reader.refuse("supersteps", f"has {len(message.supersteps)} entries; the limit is {MOST_SUPERSTEPS}")
    if sum(len(superstep.updates) for superstep in message.supersteps) > MOST_UPDATES:
        reader.refuse("supersteps", f"have more than {MOST_UPDATES} updates")
    reader.check()
    supersteps = tuple(
        tuple(
            _update(f"supersteps[{number}].updates[{place}].", update, reader)
            for place, update in enumerate(superstep.updates)
        )
        for number, superstep in enumerate(message.supersteps)
    )
    for number, superstep in enumerate(supersteps):
        if not superstep:
            reader.refuse(f"supersteps[{number}].updates", "is empty")
    reader.check()
    return UpdateRequest(
        thread_id,
        supersteps,
        message.graph,
        message.version,
        message.checkpoint_id,
        message.request_id,
        fingerprint(message),
        principal,
    )


def _update(prefix: str, message: pb.StateUpdate, reader: RequestReader) -> StateUpdate:
    reader.name(f"{prefix}as_node", message.as_node, LONGEST_ID_BYTES)
    reader.name(f"{prefix}task_id", message.task_id, LONGEST_NAME_BYTES)
    return StateUpdate(
        message.as_node,
        channels(f"{prefix}update_json", message.update_json, reader),
        targets(f"{prefix}goto", message.goto, reader),
        message.task_id,
    )


def fork_request(message: pb.ForkThreadRequest, principal: str) -> ForkRequest:
    """Return what ForkThread asks."""
    reader = RequestReader()
    thread_id = _named(message, reader)
    reader.name("checkpoint_id", message.checkpoint_id, LONGEST_NAME_BYTES)
    reader.identifier("new_thread_id", message.new_thread_id, LONGEST_THREAD_BYTES)
    reader.check()
    return ForkRequest(
        thread_id,
        message.checkpoint_id,
        message.new_thread_id,
        message.request_id,
        fingerprint(message),
        principal,
    )


def copy_request(message: pb.CopyThreadRequest, principal: str) -> CopyRequest:
    """Return what CopyThread asks."""
    reader = RequestReader()
    thread_id = _named(message, reader)
    reader.identifier("new_thread_id", message.new_thread_id, LONGEST_THREAD_BYTES)
    reader.check()
    return CopyRequest(thread_id, message.new_thread_id, message.request_id, fingerprint(message), principal)


def delete_request(message: pb.DeleteThreadRequest, principal: str) -> tuple[str, RequestRecord | None]:
    """Return which thread DeleteThread is about, and what it is known by when it is sent again."""
    reader = RequestReader()
    thread_id = _named(message, reader)
    reader.check()
    return thread_id, request_of("DeleteThread", message, principal)


def prune_request(message: pb.PruneThreadRequest) -> tuple[str, int]:
    """Return which thread PruneThread is about, and how many checkpoints of each branch stay."""
    reader = RequestReader()
    thread_id = _named(message, reader)
    if message.keep_last < 1:
        reader.refuse("keep_last", "is 0; at least one checkpoint of each branch is kept")
    reader.check()
    return thread_id, message.keep_last


def rewind_request(message: pb.RewindRunRequest, principal: str) -> RewindRunRequest:
    """Return what RewindRun asks."""
    reader = RequestReader()
    thread_id = _named(message, reader)
    if not message.checkpoint_id:
        reader.refuse("checkpoint_id", "is empty; ListCheckpoints names those there are")
    reader.name("checkpoint_id", message.checkpoint_id, LONGEST_NAME_BYTES)
    reader.check()
    return RewindRunRequest(
        thread_id,
        message.checkpoint_id,
        dry_run=message.dry_run,
        accept_irreversible=message.accept_irreversible,
        request=None if message.dry_run else request_of("RewindRun", message, principal),
    )


def _named(
    message: pb.ForkThreadRequest
    | pb.CopyThreadRequest
    | pb.DeleteThreadRequest
    | pb.PruneThreadRequest
    | pb.RewindRunRequest,
    reader: RequestReader,
) -> str:
    reader.identifier("request_id", message.request_id, LONGEST_ID_BYTES)
    return thread_id_of(message.thread_id, reader)
