"""How far runs are, as messages."""

from __future__ import annotations

from collections.abc import Iterable

from agenttx.v1 import graph_pb2 as pb
from agenttx_server.api.message_conversion.enumerations import to_wire
from agenttx_server.api.message_conversion.values import (
    duration_from_microseconds,
    timestamp_from_microseconds,
)
from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.records import MicrosecondsUtc
from agenttx_server.graphs.runs.records import LIVE, InterruptRecord, RunError, RunOptions
from agenttx_server.graphs.runs.requests import RunOutcome
from agenttx_server.graphs.runs.run_reading import RunListing, RunView
from agenttx_server.graphs.runs.run_rewinder import RewoundRun

__all__ = [
    "error_message",
    "interrupt_messages",
    "list_response",
    "outcome_message",
    "rewind_response",
    "run_message",
]


def outcome_message(outcome: RunOutcome) -> pb.RunOutcome:
    """Tell how an invocation ended, or that it was started."""
    run = outcome.run
    is_live = run.status in LIVE
    return pb.RunOutcome(
        run_id=run.run_id,
        thread_id=run.thread_id,
        status=to_wire(run.status),
        state_json="" if is_live else canonical(dict(outcome.state)),
        visited_nodes=outcome.visited,
        supersteps=run.total_supersteps - run.invocation_first,
        interrupts=interrupt_messages(outcome.interrupts),
        checkpoint_id=outcome.checkpoint_id,
        last_offset=max(run.next_offset - 1, 0),
        error=None if run.error is None else error_message(run.error),
        next_nodes=outcome.next_nodes,
        transaction_id=run.transaction_id,
        graph_version=run.graph_version,
    )


def run_message(view: RunView) -> pb.GraphRun:
    """Tell the status record of a run."""
    run = view.run
    message = pb.GraphRun(
        run_id=run.run_id,
        root_run_id=run.root_run_id,
        parent_run_id=run.parent_run_id,
        thread_id=run.thread_id,
        graph=run.graph,
        graph_version=run.graph_version,
        checkpoint_id=view.checkpoint_id,
        namespace=run.namespace,
        status=to_wire(run.status),
        superstep=run.superstep,
        active_nodes=run.active_nodes,
        interrupts=interrupt_messages(view.interrupts),
        last_event=run.last_event,
        last_offset=max(run.next_offset - 1, 0),
        created_at=timestamp_from_microseconds(MicrosecondsUtc(run.created_at)),
        updated_at=timestamp_from_microseconds(MicrosecondsUtc(run.updated_at)),
        error=None if run.error is None else error_message(run.error),
        transaction_id=run.transaction_id,
        options=_options(run.options),
        total_supersteps=run.total_supersteps,
    )
    if run.ended_at is not None:
        message.ended_at.CopyFrom(timestamp_from_microseconds(MicrosecondsUtc(run.ended_at)))
    return message


def list_response(listing: RunListing) -> pb.ListRunsResponse:
    """Tell a page of runs."""
    return pb.ListRunsResponse(runs=map(run_message, listing.runs), next_page_token=listing.next_cursor)


def rewind_response(rewound: RewoundRun) -> pb.RewindRunResponse:
    """Tell what a rewind undid, or would undo."""
    return pb.RewindRunResponse(
        checkpoint_id=rewound.checkpoint_id,
        steps_undone=rewound.undone.steps,
        compensations_run=rewound.undone.compensations,
        rollback_incomplete=rewound.undone.held,
        withdrawn_interrupt_ids=rewound.withdrawn_interrupt_ids,
        transaction_id=rewound.run.transaction_id,
    )


def interrupt_messages(interrupts: Iterable[InterruptRecord]) -> list[pb.RunInterrupt]:
    """Tell what is waited for."""
    return [
        pb.RunInterrupt(
            interrupt_id=item.interrupt_id,
            node=item.node,
            namespace=item.namespace,
            payload_json=item.payload,
            task_id=item.task_id,
            ordinal=item.ordinal,
        )
        for item in interrupts
    ]


def error_message(error: RunError) -> pb.RunError:
    """Tell why a run failed."""
    return pb.RunError(
        reason=error.reason,
        message=error.message,
        hint=error.hint,
        node=error.node,
        namespace=error.namespace,
        task_id=error.task_id,
        category=error.category,
        metadata=dict(error.metadata),
        others=map(error_message, error.others),
    )


def _options(options: RunOptions) -> pb.RunOptions:
    message = pb.RunOptions(
        recursion_limit=options.recursion_limit,
        max_total_steps=options.max_total_steps,
        max_concurrency=options.max_concurrency,
        durability=pb.CheckpointDurability.Value(f"CHECKPOINT_DURABILITY_{options.durability}"),
        commit=pb.RunCommitPolicy.Value(f"RUN_COMMIT_POLICY_{options.commit}"),
        metadata=dict(options.metadata),
    )
    if options.deadline_us is not None:
        message.deadline.CopyFrom(duration_from_microseconds(options.deadline_us))
    if options.wait_timeout_us:
        message.wait_timeout.CopyFrom(duration_from_microseconds(options.wait_timeout_us))
    return message
