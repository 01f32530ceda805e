"""What can be asked about pipelines and their runs, as operations for either client."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, Final

from agenttx import pipeline_records as records
from agenttx.errors import InvalidValue, PreconditionFailed, RpcError
from agenttx.message_conversion import number_of
from agenttx.methods import (
    CANCEL_PIPELINE_RUN,
    GET_PIPELINE,
    GET_PIPELINE_RUN,
    LIST_PIPELINE_RUNS,
    LIST_PIPELINES,
    REGISTER_PIPELINE,
    VALIDATE_PIPELINE,
)
from agenttx.operation import Operation, invoke
from agenttx.reads import Page
from agenttx.reconnection import Reconnection
from agenttx.retry_policy import RetryPolicy
from agenttx.sendable_text import sends_text
from agenttx.transaction_cursor import new_request_id
from agenttx.v1 import lineage_pb2 as pb
from agenttx.values import count, decode_json, encode_json, member

__all__ = [
    "RunCursor",
    "RunSending",
    "cancel_run",
    "get_pipeline",
    "get_run",
    "list_pipelines",
    "list_runs",
    "register_pipeline",
    "validate_pipeline",
]

_ROWS_A_MESSAGE: Final = 500
_BYTES_A_MESSAGE: Final = 1 << 20
_SIGN_OF_YAML: Final = re.compile(r"^\s*([{\[]|-(\s|$))|:(\s|$)")

Row = Mapping[str, Any] | records.PipelineRow


def validate_pipeline(
    definition: Mapping[str, Any] | str, name: str
) -> Operation[records.PipelineValidation]:
    """Have a pipeline checked."""
    request = pb.ValidatePipelineRequest(definition_text=_text(definition), default_name=name)
    answer = yield from invoke(VALIDATE_PIPELINE, request)
    return records.PipelineValidation(
        answer.valid, _violations(answer.violations), answer.version, answer.name, tuple(answer.order)
    )


def register_pipeline(
    definition: Mapping[str, Any] | str, name: str
) -> Operation[records.RegisteredPipeline]:
    """Have a pipeline checked and kept."""
    request = pb.RegisterPipelineRequest(definition_text=_text(definition), default_name=name)
    answer = yield from invoke(REGISTER_PIPELINE, request)
    return records.RegisteredPipeline(
        _version(answer.pipeline), _violations(answer.violations), answer.existed
    )


def get_pipeline(name: str, version: str) -> Operation[records.PipelineSource]:
    """Read a version."""
    answer = yield from invoke(GET_PIPELINE, pb.GetPipelineRequest(name=name, version=version))
    return records.PipelineSource(_version(answer.pipeline), decode_json(answer.definition_json))


def list_pipelines(token: str, *, name: str, page_size: int) -> Operation[Page[records.PipelineVersion]]:
    """Read one page of pipelines, or of the versions of one."""
    request = pb.ListPipelinesRequest(name=name, page_size=count("page_size", page_size), page_token=token)
    answer = yield from invoke(LIST_PIPELINES, request)
    return Page(tuple(map(_version, answer.pipelines)), answer.next_page_token)


def get_run(run_id: str) -> Operation[records.PipelineRun]:
    """Read how far a run is."""
    return _run((yield from invoke(GET_PIPELINE_RUN, pb.GetPipelineRunRequest(run_id=run_id))).run)


def list_runs(
    token: str, *, pipeline: str, statuses: Sequence[records.PipelineRunStatus | str], page_size: int
) -> Operation[Page[records.PipelineRun]]:
    """Read one page of runs."""
    request = pb.ListPipelineRunsRequest(
        pipeline=pipeline,
        statuses=[
            number_of(
                pb.PipelineRunStatus,
                "PIPELINE_RUN_STATUS_",
                member("statuses", records.PipelineRunStatus, status),
            )
            for status in statuses
        ],
        page_size=count("page_size", page_size),
        page_token=token,
    )
    answer = yield from invoke(LIST_PIPELINE_RUNS, request)
    return Page(tuple(map(_run, answer.runs)), answer.next_page_token)


def cancel_run(run_id: str, reason: str) -> Operation[records.PipelineRun]:
    """Have a run begin no further row."""
    request = pb.CancelPipelineRunRequest(run_id=run_id, reason=reason)
    return _run((yield from invoke(CANCEL_PIPELINE_RUN, request)).run)


# --- runs as they come on -------------------------------------------------------------------------


class RunSending:
    """The requests that start a run: the same ones each time they are asked for, if the rows can be read again."""

    @sends_text
    def __init__(
        self,
        pipeline: Mapping[str, Any] | str,
        rows: Iterable[Row],
        version: str,
        request_id: str,
        default_name: str,
        *,
        detach: bool = False,
    ) -> None:
        self._first = pb.RunPipelineRequest(
            version=version, request_id=request_id or new_request_id(), detach=detach
        )
        if isinstance(pipeline, str) and _is_name(pipeline):
            self._first.name = pipeline
        else:
            self._first.definition_text = _text(pipeline)
            self._first.default_name = default_name
        self._rows = rows
        self.can_repeat = isinstance(rows, Sequence)
        self.failure: Exception | None = None
        """What went wrong with a row, so that no more were sent."""

    def requests(self) -> Iterator[pb.RunPipelineRequest]:
        """The messages of a stream."""
        message = pb.RunPipelineRequest()
        message.CopyFrom(self._first)
        size = 0
        for place, item in enumerate(self._rows):
            row = item if isinstance(item, records.PipelineRow) else records.PipelineRow(item)
            if not isinstance(row.value, Mapping):
                raise InvalidValue("a row is a JSON object", path=f"rows[{place}]", rule="not_an_object")
            text = encode_json(dict(row.value))
            if len(message.rows) >= _ROWS_A_MESSAGE or size + len(text) > _BYTES_A_MESSAGE:
                yield message
                message, size = pb.RunPipelineRequest(), 0
            message.rows.add(row_json=text, relative_path=row.relative_path)
            size += len(text)
        yield message

    def kept(self) -> Iterator[pb.RunPipelineRequest]:
        """The same, for gRPC's own thread, which would not say what went wrong: that is kept."""
        try:
            yield from self.requests()
        except Exception as failure:
            self.failure = failure
            raise


class RunCursor:
    """How far a follower of a run has come, over as many streams as it takes."""

    def __init__(self, policy: RetryPolicy, run_id: str = "") -> None:
        self.run_id = run_id
        self.has_ended = False
        self._has_begun = False
        self._reconnection = Reconnection(policy)

    def opening(self) -> None:
        """A stream is opened now."""
        self._reconnection.opening()

    @sends_text
    def resuming(self) -> pb.ResumePipelineRunRequest:
        """The request for a stream that goes on, which is opened now."""
        self.opening()
        return pb.ResumePipelineRunRequest(run_id=self.run_id)

    def take(self, progress: pb.PipelineProgress) -> records.PipelineRun | records.PipelineRowEnded | None:
        """Return what is new; None for what was told when the stream before was opened."""
        self._reconnection.came()
        if progress.HasField("row"):
            row = progress.row
            return records.PipelineRowEnded(
                row.run_id, row.place, row.transaction_id, row.committed, row.reason, _counts(row.counts)
            )
        self.run_id = progress.run.run_id
        if progress.last:
            self.has_ended = True
        elif self._has_begun:
            return None
        self._has_begun = True
        return _run(progress.run)

    def wait_after(self, error: RpcError) -> float | None:
        """Return the seconds to wait before going on, or None where the error is final."""
        return self._reconnection.wait_after(error)

    def was_over(self, error: RpcError) -> bool:
        """Whether a run that was followed ended while nobody looked."""
        return (
            self._has_begun and isinstance(error, PreconditionFailed) and error.reason == "ILLEGAL_TRANSITION"
        )


def _is_name(text: str) -> bool:
    """Whether a text can only be a name: a document is a mapping or a list, so it has one of these signs of YAML."""
    return text.isprintable() and not _SIGN_OF_YAML.search(text)


def _text(definition: Mapping[str, Any] | str) -> str:
    return definition if isinstance(definition, str) else encode_json(dict(definition))


def _violations(messages: Iterable[pb.PipelineViolation]) -> tuple[records.PipelineViolation, ...]:
    return tuple(
        records.PipelineViolation(item.code, item.where, item.message, item.warning) for item in messages
    )


def _version(message: pb.PipelineVersion) -> records.PipelineVersion:
    return records.PipelineVersion(
        message.name,
        message.version,
        message.description,
        message.actions,
        message.registered_at.ToDatetime(tzinfo=UTC),
    )


def _run(message: pb.PipelineRun) -> records.PipelineRun:
    try:
        name = pb.PipelineRunStatus.Name(message.status).removeprefix("PIPELINE_RUN_STATUS_")
        status = records.PipelineRunStatus(name)
    except ValueError:
        status = records.PipelineRunStatus.UNSPECIFIED
    return records.PipelineRun(
        message.run_id,
        message.pipeline,
        message.version,
        status,
        message.cancel_requested,
        message.rows,
        message.rows_committed,
        message.rows_failed,
        message.rows_running,
        message.reason,
        _counts(message.counts),
        message.created_at.ToDatetime(tzinfo=UTC),
        message.updated_at.ToDatetime(tzinfo=UTC),
    )


def _counts(messages: Iterable[pb.PipelineActionCounts]) -> tuple[records.ActionCounts, ...]:
    return tuple(
        records.ActionCounts(
            item.action,
            item.processed,
            item.skipped,
            item.filtered,
            item.dropped,
            item.failed,
            item.blocked,
        )
        for item in messages
    )
