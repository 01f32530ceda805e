"""Runs the calls that one server asks for, and answers each exactly once."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

from agenttx import message_conversion
from agenttx.enumerations import EffectClass
from agenttx.errors import InvalidValue
from agenttx.graph_results import result_as_json
from agenttx.hosting.call_failures import failure_of
from agenttx.hosting.offer import Offered, is_async
from agenttx.hosting.remote_port import Ask, RemotePort
from agenttx.node_context import NodeContext, NodeInterrupted, NodeState, Told
from agenttx.tools.blocking_pool import BlockingPool
from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.call_port import UndoContext
from agenttx.tools.definition import AnyTool
from agenttx.tools.errors import ArgumentsRefused, ContextClosed, OutcomeUnknown, ToolFailure
from agenttx.tools.hint_category import HintCategory
from agenttx.tools.running import call_tool, run_undo
from agenttx.trace_context import serving
from agenttx.v1 import tool_pb2 as pb
from agenttx.values import decode_json, encode_json

__all__ = ["Calls"]

_LOGGER = logging.getLogger("agenttx.worker")


MAX_READS = 1000


class _NodePort(RemotePort):
    """Implements :class:`agenttx.node_context.NodePort`."""

    def __init__(
        self, call: pb.FunctionCall, ask: Ask, largest: int, emit: Callable[[int, str, str], None]
    ) -> None:
        super().__init__(call, ask, largest)
        self.emit = functools.partial(emit, call.call_id)


class _Running:
    """A call under way, and how to stop it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.context: ToolCallContext | NodeContext | None = None
        self.port: RemotePort | None = None

    def stop(self, why: str) -> None:
        if self.context is not None:
            self.context.note_cancelled()
        if self.port is not None:
            self.port.close(why)
        if self.task is not None:
            self.task.cancel()


class Calls:
    """The calls of one connection. ``send`` queues a message for the server."""

    def __init__(
        self,
        offered: Offered,
        pool: BlockingPool,
        send: Callable[[pb.ConnectRequest], None],
        largest_value_bytes: int,
    ) -> None:
        self._offered = offered
        self._pool = pool
        self._send = send
        self._largest = largest_value_bytes
        self._running: dict[int, _Running] = {}
        self._requests: dict[int, asyncio.Future[pb.ContextAnswer]] = {}
        self._last_request_id = 0
        self._closed = ""

    @property
    def ids(self) -> list[int]:
        """The calls that run now. Any thread may ask."""
        return sorted(self._running)

    def take(self, message: pb.ConnectResponse) -> None:
        """Do what the server says of calls."""
        match message.WhichOneof("message"):
            case "call":
                run = functools.partial(self._run_tool, message.call)
                self._start(message.call.call_id, run, message, f"tool {message.call.tool_name}")
            case "function":
                call = message.function
                name = f"function {call.function_name}"
                self._start(call.call_id, functools.partial(self._run_function, call), message, name)
            case "undo":
                undo = functools.partial(self._run_undo, message.undo)
                self._start(message.undo.call_id, undo, message, f"undo {message.undo.undo_name}")
            case "deliver":
                deliver = functools.partial(self._deliver, message.deliver)
                name = f"deliver {message.deliver.effect.channel}"
                self._start(message.deliver.call_id, deliver, message, name)
            case "cancel":
                if running := self._running.get(message.cancel.call_id):
                    running.stop(message.cancel.reason or "the call was cancelled")
            case "context":
                answered = self._requests.pop(message.context.request_id, None)
                if answered is not None and not answered.done():
                    answered.set_result(message.context)

    def close(self, why: str) -> None:
        """Stop everything: the server settles these calls without their answers."""
        self._closed = why
        for running in tuple(self._running.values()):
            running.stop(why)
        requests, self._requests = self._requests, {}
        for request in requests.values():
            if not request.done():
                request.set_exception(ContextClosed(why))
                request.exception()  # seen, also when nobody waits for it any more

    async def ended(self) -> None:
        """Wait until the code of every call has ended."""
        while tasks := [running.task for running in self._running.values() if running.task is not None]:
            await asyncio.wait(tasks)

    # --- one call -----------------------------------------------------------------------

    def _start(
        self,
        call_id: int,
        run: Callable[[_Running], Awaitable[pb.CallOutcome]],
        message: pb.ConnectResponse,
        name: str,
    ) -> None:
        async def traced(running: _Running) -> pb.CallOutcome:
            with serving(name, message.traceparent, message.tracestate):
                return await run(running)

        running = self._running[call_id] = _Running()
        runs = traced if message.traceparent else run
        running.task = asyncio.get_running_loop().create_task(self._answered(call_id, running, runs))

    async def _answered(
        self, call_id: int, running: _Running, run: Callable[[_Running], Awaitable[pb.CallOutcome]]
    ) -> None:
        try:
            outcome = await run(running)
        except OutcomeUnknown as error:
            outcome = pb.CallOutcome(unknown=" ".join(str(error).split())[:1000] or "the tool can't tell")
        except asyncio.CancelledError:
            outcome = pb.CallOutcome(
                failure=pb.CallFailure(category=HintCategory.CANCELLED, message="the call was cancelled")
            )
        except BaseException as error:
            outcome = pb.CallOutcome(failure=failure_of(error))
        finally:
            del self._running[call_id]
        outcome.call_id = call_id
        if self._closed:
            _LOGGER.warning("a call ended after its connection did (%s): its answer is dropped", self._closed)
            return
        self._send(pb.ConnectRequest(outcome=outcome))

    async def _run_tool(self, call: pb.ToolCall, running: _Running) -> pb.CallOutcome:
        tool = self._offered.tools.get(call.tool_name)
        if tool is None:
            refused = ArgumentsRefused(
                HintCategory.UNKNOWN_TOOL, f"this worker has no tool '{call.tool_name}'"
            )
            return pb.CallOutcome(failure=failure_of(refused, not_called=True))
        try:
            values = tool.parameters.validate(decode_json(call.arguments_json or "{}"))
        except ArgumentsRefused as refused:
            return pb.CallOutcome(failure=failure_of(refused, not_called=True))
        running.port = RemotePort(call, self._ask, self._largest)
        running.context = ToolCallContext(
            running.port,
            tool,
            self._offered.undo_actions,
            on_progress=functools.partial(self._progress, call.call_id),
        )
        try:
            result = await call_tool(tool, values, running.context, self._pool)
        finally:
            running.port.close("the step has ended")
        return self._output(tool, result)

    async def _run_function(self, call: pb.FunctionCall, running: _Running) -> pb.CallOutcome:
        function = self._offered.functions.get(call.function_name)
        if function is None:
            refused = ArgumentsRefused(
                HintCategory.UNKNOWN_TOOL, f"this worker has no function '{call.function_name}'"
            )
            return pb.CallOutcome(failure=failure_of(refused, not_called=True))
        told = decode_json(call.told_json or "{}")
        state = NodeState(told.get("state", {}))
        context = None
        if call.step_id:
            port = running.port = _NodePort(call, self._ask, self._largest, self._emit)
            context = NodeContext(port, Told(told), functools.partial(self._progress, call.call_id))
            running.context = context
        try:
            result = await function.run(state, context, self._pool)
            outcome = pb.CallOutcome(output_json=self._function_output(function.name, result))
        except NodeInterrupted:
            outcome = pb.CallOutcome(output_json="null")  # the server knows what was asked
        except OutcomeUnknown as error:
            # All that it does outside is in steps, whose outcomes are known.
            outcome = pb.CallOutcome(failure=failure_of(ToolFailure(HintCategory.UNKNOWN, str(error))))
        except Exception as error:
            outcome = pb.CallOutcome(failure=failure_of(error))
        finally:
            if running.port is not None:
                running.port.close("the node has ended")
        outcome.reads.extend(state.reads[:MAX_READS])
        return outcome

    def _function_output(self, name: str, result: object) -> str:
        try:
            text = encode_json(result_as_json(result))
        except InvalidValue as error:
            raise ToolFailure(
                HintCategory.INVALID_VALUE, f"{name} returned a value that is not plain JSON: {error}"
            ) from error
        size = len(text.encode())
        if size > self._largest:
            raise ToolFailure(
                HintCategory.RESOURCE_EXHAUSTED,
                f"{name} returned {size} bytes, the limit is {self._largest} bytes",
            )
        return text

    def _output(self, tool: AnyTool, result: object) -> pb.CallOutcome:
        try:
            text = encode_json(result)
            size = len(text.encode())
            if size > self._largest:
                raise ToolFailure(
                    HintCategory.RESOURCE_EXHAUSTED,
                    f"{tool.name} returned {size} bytes, the limit is {self._largest} bytes. Ask for less, or in parts",
                )
        except (InvalidValue, ToolFailure) as error:
            if tool.effect_class is EffectClass.IRREVERSIBLE:  # its effect has happened: no failure
                return pb.CallOutcome(unknown=f"its result can't be kept: {error}"[:1000])
            if isinstance(error, InvalidValue):
                error = ToolFailure(
                    HintCategory.INVALID_VALUE,
                    f"{tool.name} returned a value that is not plain JSON: {error}",
                )
            return pb.CallOutcome(failure=failure_of(error))
        return pb.CallOutcome(output_json=text)

    async def _run_undo(self, call: pb.UndoCall, running: _Running) -> pb.CallOutcome:
        action = self._offered.undo_actions.get(call.undo_name)
        if action is None:
            raise ToolFailure(HintCategory.UNKNOWN_TOOL, f"this worker has no undo action '{call.undo_name}'")
        context = UndoContext(
            call.transaction_id, call.agent_id, call.step_id, call.attempt, call.idempotency_key
        )
        await run_undo(action, decode_json(call.arguments_json or "{}"), context, self._pool)
        return pb.CallOutcome(output_json="")

    async def _deliver(self, call: pb.DeliverCall, running: _Running) -> pb.CallOutcome:
        effect = message_conversion.effect(call.effect)
        handler = self._offered.channels.get(effect.channel)
        if handler is None:
            raise ToolFailure(HintCategory.UNKNOWN_TOOL, f"this worker has no channel '{effect.channel}'")
        delivery = functools.partial(handler, effect)
        result = delivery() if is_async(handler) else await self._pool.run(delivery)
        if result is not None:
            await result
        return pb.CallOutcome(output_json="")

    # --- what its code asks -------------------------------------------------------------

    async def _ask(self, request: pb.ContextRequest) -> pb.ContextAnswer:
        if self._closed:
            raise ContextClosed(self._closed)
        self._last_request_id += 1
        request.request_id = self._last_request_id
        answered: asyncio.Future[pb.ContextAnswer] = asyncio.get_running_loop().create_future()
        self._requests[request.request_id] = answered
        self._send(pb.ConnectRequest(context=request))
        try:
            return await answered
        finally:
            self._requests.pop(request.request_id, None)

    def _emit(self, call_id: int, name: str, data: str) -> None:
        if not self._closed and call_id in self._running:
            event = pb.CallEvent(call_id=call_id, name=name, data_json=data)
            self._send(pb.ConnectRequest(event=event))

    def _progress(self, call_id: int, fraction: float, message: str) -> None:
        if not self._closed and call_id in self._running:
            told = pb.CallProgress(call_id=call_id, fraction=fraction, message=message[:256])
            self._send(pb.ConnectRequest(progress=told))
