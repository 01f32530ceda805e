"""One call on its way through the chain, and what is known of its method."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import grpc.aio
from google.rpc import status_pb2

from agenttx_server.access.identity import Identity, Role
from agenttx_server.logging_setup import plain
from agenttx_server.trace_context import trace_id

if TYPE_CHECKING:
    from agenttx_server.api.interceptors.shedding import StepStay

__all__ = ["CallClass", "Interceptor", "Method", "RpcCall", "RpcContext", "call_facts", "current_call"]

RpcContext: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CallClass(Enum):
    """How a call uses the server; each class has its own bound."""

    STEP = auto()
    CHANGE = auto()
    READ = auto()
    STREAM = auto()
    WORKER = auto()
    EXEMPT = auto()
    """Health checks: served while draining and however busy the server is."""


@dataclass(frozen=True, slots=True)
class Method:
    """What is the same for every call of a method. ``label`` is its name where cardinality counts.

    ``roles`` are those that may call it; None is everybody whose credentials are good.
    """

    path: str
    label: str
    call_class: CallClass
    is_stream: bool
    roles: frozenset[Role] | None = frozenset()


class RpcCall:
    """The state of one call. Stages write to it; nothing of it outlives the call.

    ``error`` is what the handler (or a stage) raised and ``status`` what the caller is told
    instead, set by error_mapping; ``code`` is final from then on. ``request`` and ``response``
    are the messages of a unary call.
    """

    __slots__ = (
        "code",
        "context",
        "error",
        "facts",
        "identity",
        "in_flight",
        "method",
        "request",
        "response",
        "started",
        "status",
        "stay",
        "stop_timer",
        "timed_out",
    )

    def __init__(self, method: Method, context: RpcContext) -> None:
        self.method = method
        self.context = context
        self.identity: Identity | None = None
        self.started = 0.0
        self.request: Any = None
        self.response: Any = None
        self.error: BaseException | None = None
        self.status: status_pb2.Status | None = None
        self.code = grpc.StatusCode.OK
        self.facts: dict[str, object] | None = None
        self.stop_timer: Callable[[], None] | None = None
        self.timed_out = False
        self.in_flight = False
        self.stay: StepStay | None = None

    @property
    def principal(self) -> str:
        """Who calls. LookupError before that is known, so that nothing is ever done for nobody."""
        if self.identity is None:
            raise LookupError("the caller is not known yet")
        return self.identity.principal

    @property
    def scope(self) -> str:
        """Whose things the call sees: the caller's own, or, empty, everybody's. LookupError like principal."""
        if self.identity is None:
            raise LookupError("the caller is not known yet")
        return self.identity.scope(self.method.roles or frozenset())

    def note(self, **facts: object) -> None:
        """Add to the call's log line; for streams, whose messages the chain doesn't see."""
        if self.facts is None:
            self.facts = facts
        else:
            self.facts.update(facts)


class Interceptor(Protocol):
    """A stage of the chain."""

    @property
    def name(self) -> str:
        """Its name in the order that the chain is asserted by."""

    def enter(self, call: RpcCall) -> Awaitable[None] | None:
        """Run before the handler, outermost first. Raising refuses the call; inner stages are not entered.

        A stage that has to wait returns what is to be awaited; most never do, and that costs nothing.
        """

    def leave(self, call: RpcCall) -> None:
        """Run after the handler, innermost first, if this stage was entered. Must not raise."""


_current: ContextVar[RpcCall] = ContextVar("agenttx_rpc_call")


def current_call() -> RpcCall:
    """Return the call being served; raises LookupError outside of one."""
    return _current.get()


def enter_context(call: RpcCall) -> None:
    """Make ``call`` the current one. Each call has a task of its own, so nothing needs resetting."""
    _current.set(call)


def call_facts() -> dict[str, object]:
    """Return what a log line says of the call being served: method, transaction, step, request id, principal, trace."""
    call = _current.get(None)
    if call is None:
        return {}
    facts = {"method": call.method.label, **message_facts(call)}
    if call.identity is not None:
        facts["principal"] = plain(call.identity.principal)
    if trace := trace_id():
        facts["trace"] = trace
    return facts


def message_facts(call: RpcCall) -> dict[str, object]:
    """Return the identifying fields of a call's messages, none of its content."""
    facts: dict[str, object] = {}
    for name, field in (("transaction", "transaction_id"), ("step", "step_id"), ("request_id", "request_id")):
        value = getattr(call.request, field, None) or getattr(call.response, field, None)
        if value:
            facts[name] = plain(value) if isinstance(value, str) else value
    if call.facts:
        facts.update(call.facts)
    return facts
