"""Spans around steps, tools, undo, deliveries and functions of graphs: put around the parts where traces are on.

Where they are off nothing of this is there. What a wrapper does not wrap goes to what it is put around.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agenttx_server.engine.ports import EffectSink, ToolContext, ToolRunner, UndoContext
from agenttx_server.engine.records import EffectRecord, TransactionId
from agenttx_server.engine.requests import (
    CommitAnswer,
    CommitRequest,
    GroupRequest,
    RewindAnswer,
    RewindRequest,
    RollbackRequest,
    StepAnswer,
    StepRequest,
)
from agenttx_server.engine.transaction_coordinator import TransactionCoordinator
from agenttx_server.graphs.runs.step_port import FunctionReport
from agenttx_server.telemetry.tracing import SpanKind, Tracer
from agenttx_server.tools.hosted_functions import HostedFunctions

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["StepsUnderWay", "TracedCoordinator", "TracedFunctions", "TracedSink", "TracedTools"]

# Commits whose effects may still be on their way; of older ones, and after a restart, deliveries are traces of their own.
_REMEMBERED_COMMITS = 10_000


class TracedCoordinator:
    """The engine's front door: a span for each step, group, commit and rewind, with how it ended."""

    def __init__(self, coordinator: TransactionCoordinator, tracer: Tracer, sink: TracedSink) -> None:
        self._coordinator = coordinator
        self._tracer = tracer
        self._sink = sink

    def execute_step(self, request: StepRequest) -> Awaitable[StepAnswer]:
        # The very call, where it is not traced: that is the usual case, and should cost nothing.
        if self._tracer.is_left_out:
            return self._coordinator.execute_step(request)
        return self._traced_step(request)

    async def _traced_step(self, request: StepRequest) -> StepAnswer:
        name = f"step {_name(request.call.tool_name)}"
        with self._tracer.span(name, _at(request.transaction_id, step=request.step_id)) as span:
            answer = await self._coordinator.execute_step(request)
            if span is not None:
                _tell_step(span, answer)
        return answer

    async def execute_group(self, request: GroupRequest) -> tuple[StepAnswer, ...]:
        about = _at(request.transaction_id, step=request.step_id) | {"agenttx.group_size": len(request.calls)}
        with self._tracer.span("step group", about) as span:
            answers = await self._coordinator.execute_group(request)
            if span is not None:
                for number, answer in enumerate(answers):
                    told = {"agenttx.step": request.step_id + number, "agenttx.status": answer.status.value}
                    span.add_event("member", told)
                _tell_step(span, answers[-1])
        return answers

    async def commit(self, request: CommitRequest) -> CommitAnswer:
        with self._tracer.span("commit", _at(request.transaction_id)) as span:
            if span is not None:
                # Before: the first deliveries begin within.
                self._sink.remember(request.transaction_id)
            return await self._coordinator.commit(request)

    async def rewind(self, request: RewindRequest) -> RewindAnswer:
        about = _at(request.transaction_id) | {"agenttx.to_step": request.to_step}
        with self._tracer.span("rewind", about):
            return await self._coordinator.rewind(request)

    async def rollback(self, request: RollbackRequest) -> RewindAnswer:
        with self._tracer.span("rollback", _at(request.transaction_id)):
            return await self._coordinator.rollback(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordinator, name)


class StepsUnderWay:
    """Steps whose code runs and is traced: what one asks for from within its worker comes in on the worker's own stream."""

    def __init__(self) -> None:
        self._contexts: dict[tuple[TransactionId, int], Context] = {}

    def parent_of(self, context: ToolContext) -> Context | None:
        """Return what a sub-step belongs to; None for a step, and where that is not traced."""
        return self._contexts.get((context.transaction_id, context.step_id)) if context.sub_step else None

    @contextmanager
    def running(self, context: ToolContext | None, current: Context | None) -> Iterator[None]:
        """Have sub-steps of a step belong to ``current`` while it runs."""
        if context is None or context.sub_step or current is None:
            yield
            return
        step = context.transaction_id, context.step_id
        self._contexts[step] = current
        try:
            yield
        finally:
            self._contexts.pop(step, None)


class TracedTools:
    """Tools and undo actions: a span for each call, also of those that a step makes."""

    def __init__(self, tools: ToolRunner, tracer: Tracer, steps: StepsUnderWay) -> None:
        self._tools = tools
        self._tracer = tracer
        self._steps = steps
        # Asked for with every step, and 0.6 µs by way of __getattr__.
        self.describe = tools.describe

    def run(self, name: str, arguments: Any, context: ToolContext) -> Coroutine[Any, Any, Any]:
        parent = self._steps.parent_of(context)
        if parent is None and (context.sub_step or self._tracer.is_left_out):
            return self._tools.run(name, arguments, context)
        return self._traced(name, arguments, context, parent)

    async def _traced(self, name: str, arguments: Any, context: ToolContext, parent: Context | None) -> Any:
        with (
            self._tracer.span(f"tool {_name(name)}", _call(context), SpanKind.CLIENT, parent),
            self._steps.running(context, self._tracer.current()),
        ):
            return await self._tools.run(name, arguments, context)

    def run_prompt(self, name: str, arguments: Any, context: ToolContext) -> Any:
        if self._tracer.is_left_out:
            return self._tools.run_prompt(name, arguments, context)
        with self._tracer.span(f"tool {_name(name)}", _call(context)):
            return self._tools.run_prompt(name, arguments, context)

    async def undo(self, undo_name: str, arguments: Any, context: UndoContext) -> None:
        about = _at(context.transaction_id, step=context.step_id)
        with self._tracer.span(f"undo {_name(undo_name)}", about, SpanKind.CLIENT):
            await self._tools.undo(undo_name, arguments, context)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tools, name)


class TracedSink:
    """Deliveries of effects, in the trace of the commit that released them; sinks ``beside`` one another know the same commits."""

    def __init__(self, sink: EffectSink, tracer: Tracer, beside: TracedSink | None = None) -> None:
        self._sink = sink
        self._tracer = tracer
        self._commits: OrderedDict[TransactionId, Context] = (
            OrderedDict() if beside is None else beside._commits
        )

    def remember(self, transaction_id: TransactionId) -> None:
        """Have deliveries of a transaction's effects belong to the span under way."""
        context = self._tracer.current()
        if context is not None:
            self._commits[transaction_id] = context
            if len(self._commits) > _REMEMBERED_COMMITS:
                self._commits.popitem(last=False)

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        about = _at(transaction_id, step=effect.step_id) | {
            "agenttx.effect_id": effect.effect_id,
            "agenttx.delivery_attempt": effect.attempts,
        }
        name = f"deliver {_name(effect.channel)}"
        with self._tracer.span(name, about, SpanKind.PRODUCER, self._commits.get(transaction_id)):
            await self._sink.deliver(transaction_id, effect)


class TracedFunctions:
    """Functions of graphs: a span for each run of a node or a router."""

    def __init__(self, functions: HostedFunctions, tracer: Tracer, steps: StepsUnderWay) -> None:
        self._functions = functions
        self._tracer = tracer
        self._steps = steps

    async def call(
        self,
        function: str,
        arguments: str,
        context: ToolContext | None,
        report: FunctionReport | None = None,
        idle_seconds: float | None = None,
    ) -> str:
        about = {} if context is None else _call(context)
        with (
            self._tracer.span(f"function {_name(function)}", about, SpanKind.CLIENT),
            self._steps.running(context, self._tracer.current()),
        ):
            return await self._functions.call(function, arguments, context, report, idle_seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)


def _name(text: str) -> str:
    """A name that a caller chose, fit for a span's."""
    return text[:128] if text.isprintable() else "?"


def _at(transaction_id: TransactionId, *, step: int = 0) -> dict[str, str | int]:
    about: dict[str, str | int] = {"agenttx.transaction": transaction_id[:64]}
    return about | {"agenttx.step": step} if step else about


def _call(context: ToolContext) -> dict[str, str | int]:
    about = _at(context.transaction_id, step=context.step_id) | {"agenttx.attempt": context.attempt}
    return about | {"agenttx.sub_step": context.sub_step} if context.sub_step else about


def _tell_step(span: Span, answer: StepAnswer) -> None:
    span.set_attribute("agenttx.status", answer.status.value)
    span.set_attribute("agenttx.attempt", answer.attempt)
    if answer.replayed:
        span.set_attribute("agenttx.replayed", True)
    if answer.hint is not None:
        span.set_attribute("agenttx.hint_category", str(answer.hint.category))
    if answer.decision is not None:
        span.set_attribute("agenttx.strategy", answer.strategy.value)
        span.set_attribute("agenttx.rollback_to_step", answer.rollback_to_step)
        span.set_attribute("agenttx.rewind_steps", answer.decision.cost)
