"""A call's context over the connection to the server that asked for it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from agenttx.tools.definition import ToolDefinitionError
from agenttx.tools.errors import ContextClosed, SubStepFailed, ToolFailure
from agenttx.tools.hint_category import HintCategory
from agenttx.v1 import tool_pb2 as pb

__all__ = ["Ask", "RemotePort"]

LARGEST_SCAN = 1000

Ask = Callable[[pb.ContextRequest], Awaitable[pb.ContextAnswer]]


class RemotePort:
    """Implements :class:`agenttx.tools.call_port.CallPort`.

    ``ask`` sends a request and returns its answer, or raises ContextClosed. Closed, everything is refused.
    """

    def __init__(self, call: pb.ToolCall | pb.FunctionCall, ask: Ask, largest_value_bytes: int) -> None:
        self.transaction_id = call.transaction_id
        self.agent_id = call.agent_id
        self.step_id = call.step_id
        self.attempt = call.attempt
        self.idempotency_key = call.idempotency_key
        self.fence = call.fence
        self.metadata = call.metadata_json if isinstance(call, pb.ToolCall) else ""
        self._call_id = call.call_id
        self._ask = ask
        self._largest = largest_value_bytes
        # By this machine's own clock: the server's may differ.
        self._deadline = time.monotonic() + call.time_left.ToNanoseconds() / 1e9
        self._closed = ""

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def close(self, why: str) -> None:
        """Refuse everything from now on."""
        self._closed = self._closed or why

    async def get(self, key: str) -> str | None:
        answer = await self._asked(get=pb.ContextGet(key=key))
        return answer.value.value_json if answer.value.found else None

    async def scan(
        self, prefix: str, after: str = "", limit: int = LARGEST_SCAN
    ) -> Sequence[tuple[str, str]]:
        limit = max(1, min(limit, LARGEST_SCAN))
        found: list[tuple[str, str]] = []
        while True:
            asked = pb.ContextScan(prefix=prefix, after=after, limit=limit - len(found))
            entries = (await self._asked(scan=asked)).entries
            found += ((entry.key, entry.value_json) for entry in entries.entries)
            if not entries.is_cut or len(found) >= limit:
                return found
            after = found[-1][0]

    async def put(self, key: str, value: str) -> None:
        self._check_size("value", value)
        await self._asked(put=pb.ContextPut(key=key, value_json=value))

    async def delete(self, key: str) -> None:
        await self._asked(delete=pb.ContextDelete(key=key))

    async def require_exists(self, key: str, error: str) -> None:
        _refuse_check()

    async def require_none(self, prefix: str, error: str) -> None:
        _refuse_check()

    async def register_undo(self, undo_name: str, arguments: str, idempotency_key: str = "") -> None:
        self._check_size("arguments", arguments)
        await self._asked(
            register_undo=pb.ContextRegisterUndo(
                undo_name=undo_name, arguments_json=arguments, idempotency_key=idempotency_key
            )
        )

    async def update_undo(self, undo_name: str, arguments: str) -> None:
        raise ToolDefinitionError(
            "update_undo is for tools that run in the server; register another undo action"
        )

    async def stage_effect(self, channel: str, payload: str, idempotency_key: str = "") -> str:
        self._check_size("payload", payload)
        asked = pb.ContextStageEffect(channel=channel, payload_json=payload, idempotency_key=idempotency_key)
        return (await self._asked(stage_effect=asked)).effect_id

    async def touch(self, key: str, *, writes: bool) -> None:
        await self._asked(touch=pb.ContextTouch(key=key, writes=writes))

    async def step(self, tool_name: str, arguments: str, timeout_us: int | None = None) -> str:
        self._check_size("arguments", arguments)
        asked = pb.ContextStep(tool_name=tool_name, arguments_json=arguments)
        if timeout_us is not None:
            asked.timeout.FromMicroseconds(timeout_us)
        return (await self._asked(step=asked)).output_json

    async def interrupt(self, payload: str) -> str | None:
        """Ask whoever resumes the run; None: there is no answer yet, and nothing more can be asked."""
        self._check_size("question", payload)
        answer = await self._asked(interrupt=pb.ContextInterrupt(payload_json=payload))
        if answer.WhichOneof("answer") == "waits":
            self.close("the node waits for an answer")
            return None
        return answer.output_json

    async def _asked(self, **request: Any) -> pb.ContextAnswer:
        if self._closed:
            raise ContextClosed(self._closed)
        answer = await self._ask(pb.ContextRequest(call_id=self._call_id, **request))
        match answer.WhichOneof("answer"):
            case "closed":
                self.close(answer.closed)
                raise ContextClosed(answer.closed)
            case "failure":
                failure = answer.failure
                if failure.failed_sub_step:
                    raise SubStepFailed(
                        failure.category,
                        failure.message,
                        tuple(failure.keys),
                        sub_step=failure.failed_sub_step,
                    )
                raise ToolFailure(failure.category, failure.message, tuple(failure.keys))
        return answer

    def _check_size(self, what: str, text: str) -> None:
        size = len(text.encode())
        if size > self._largest:  # sent, it would break the connection
            raise ToolFailure(
                HintCategory.RESOURCE_EXHAUSTED,
                f"the {what} is {size} bytes long, the limit is {self._largest}. Use a smaller one",
                (what,),
            )


def _refuse_check() -> NoReturn:
    raise ToolDefinitionError("require_exists and require_none are for tools that run in the server")
