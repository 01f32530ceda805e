"""Functions of graphs, nodes and routers, that run in workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agenttx_server.engine.json_values import MISSING, JsonValue, ValueRefused, canonical, load, parse
from agenttx_server.engine.ports import (
    NotCalled,
    ReportedFailure,
    RunnerLost,
    SubStepFailed,
    ToolContext,
    ToolFailure,
)
from agenttx_server.engine.records import HintCategory
from agenttx_server.graphs.node_results import INTERRUPT
from agenttx_server.graphs.runs.step_port import FunctionReport
from agenttx_server.tools.interview import Interview, StoredAnswer, deviated
from agenttx_server.tools.remote_workers import RemoteWorkers, error_of
from agenttx_server.tools.worker_connection import Lost, Unreached
from agenttx_server.worker_messages import Failure, Outcome, Succeeded

__all__ = ["HostedFunctions"]


class HostedFunctions:
    """Implements :class:`agenttx_server.graphs.runs.step_port.NodeFunctions` over the workers' connections.

    ``launch_wait_seconds``: how long a run that starts waits for a worker that hosts its functions: after a restart
    workers need a moment to connect. ``router_timeout_seconds``: how long a router may take, its wait included.
    """

    def __init__(
        self,
        workers: RemoteWorkers,
        *,
        launch_wait_seconds: float = 5.0,
        router_timeout_seconds: float = 60.0,
    ) -> None:
        self._workers = workers
        self._launch_wait_seconds = launch_wait_seconds
        self._router_timeout_seconds = router_timeout_seconds

    async def missing(self, functions: Collection[str]) -> Sequence[str]:
        return await self._workers.missing_functions(functions, self._launch_wait_seconds)

    async def until_hosted(self, function: str) -> None:
        await self._workers.until_hosted(function)

    def is_hosted(self, function: str) -> bool:
        return self._workers.hosts(function)

    async def call(
        self,
        function: str,
        arguments: str,
        context: ToolContext | None,
        report: FunctionReport | None = None,
        idle_seconds: float | None = None,
    ) -> str:
        told: Any = load(arguments)
        stored = told.pop("answers", ())
        interview = Interview([StoredAnswer(item["asked"], item["value"]) for item in stored])
        seconds = self._router_timeout_seconds if context is None else context.seconds_left
        call, how = await self._workers.call_function(
            function,
            canonical(told) if stored else arguments,
            context,
            interview,
            seconds,
            None if report is None else report.on_event,
            idle_seconds,
        )
        if report is not None:
            report.events = list(call.events)
            report.was_unreached = isinstance(how, Unreached)
            if call.was_idle:
                report.fault = "NODE_TIMEOUT"
            if isinstance(how, Succeeded | Failure):
                report.reads = how.reads
        if interview.deviation is not None:
            if report is not None:
                report.fault = "NON_DETERMINISTIC_INTERRUPT"
            raise ToolFailure(HintCategory.INVALID_VALUE, deviated(interview.deviation))
        if interview.pending is not MISSING:
            # Whatever it made of the signal, and even if its worker is gone: what it waits for is known.
            return canonical({INTERRUPT: interview.pending})
        return canonical(_answer(function, how))


def _answer(function: str, how: Outcome | Lost | Unreached) -> JsonValue:
    match how:
        case Succeeded(output):
            try:
                return parse(output) if output else None
            except ValueRefused as refused:
                raise ToolFailure(
                    HintCategory.INVALID_VALUE,
                    f"{function} answered a value that is not plain JSON at {refused}",
                ) from None
        case Failure():
            error = error_of(how)
            if isinstance(error, ReportedFailure | SubStepFailed | ToolFailure):
                raise error
            raise ToolFailure(HintCategory.UNKNOWN, str(error))
        case Unreached(is_offered):
            why = "all workers that host it were busy" if is_offered else "no worker hosts it now"
            raise NotCalled(HintCategory.CONNECTION, f"{function} never started: {why}")
        case Lost(why):
            raise RunnerLost(HintCategory.CONNECTION, f"the worker that ran {function} was lost: {why}")
        case _:
            raise ToolFailure(HintCategory.UNKNOWN, how.why)
