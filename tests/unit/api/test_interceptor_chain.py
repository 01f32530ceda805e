"""The chain: its order, its stages, and that it leaves handlers of all four shapes as they are."""

import asyncio
import gc
import weakref
from dataclasses import replace
from types import SimpleNamespace

import grpc
import grpc.aio
import pytest
import structlog
from grpc_health.v1 import health_pb2

from agenttx_server.access.identity import Identity, Role
from agenttx_server.api.health import Health
from agenttx_server.api.interceptors import (
    AccessLog,
    Admission,
    Authentication,
    CallClass,
    Deadline,
    ErrorMapping,
    InterceptorChain,
    Method,
    Metrics,
    RequestContext,
    RpcCall,
    current_call,
    request_context,
)
from agenttx_server.api.interceptors import metrics as metrics_stage
from agenttx_server.api.interceptors.admission import TooManyCalls
from agenttx_server.api.interceptors.call import call_facts
from agenttx_server.api.interceptors.chain import wrap_handler
from agenttx_server.api.interceptors.metrics import BUCKETS_SECONDS
from agenttx_server.api.server import ApiSettings, stages
from agenttx_server.engine.errors import NotFound, Unavailable
from agenttx_server.engine.ports import StoreUnavailable
from agenttx_server.listen_address import ListenAddress

UNARY = Method("/s/M", "M", CallClass.READ, is_stream=False)
STREAM = Method("/s/S", "S", CallClass.STREAM, is_stream=True)


class Aborted(Exception):
    pass


class FakeContext:
    """As much of a servicer's context as the chain uses."""

    def __init__(self, remaining=None):
        self.remaining = remaining
        self.metadata = ()
        self.written = []
        self.wrote = asyncio.Event()
        self.status = None

    def time_remaining(self):
        return self.remaining

    def invocation_metadata(self):
        return self.metadata

    async def write(self, message):
        self.written.append(message)
        self.wrote.set()

    async def abort_with_status(self, status):
        assert self.status is None, "aborted twice"
        self.status = status
        raise Aborted


class Recorder:
    """A stage that writes down when it was entered and left, and what it saw."""

    def __init__(self, name, journal, refuse=None):
        self.name = name
        self.journal = journal
        self.refuse = refuse

    def enter(self, call):
        self.journal.append(f"+{self.name}")
        if self.refuse is not None:
            raise self.refuse

    def leave(self, call):
        self.journal.append(f"-{self.name}")


def chain_stages(bounds=None):
    settings = ApiSettings(address=ListenAddress("localhost", 0), bounds={})
    return stages(Metrics(), Admission(bounds or {}), settings)


def test_the_order_of_the_chain():
    assert [stage.name for stage in chain_stages()] == [
        "request_context",
        "access_log",
        "metrics",
        "error_mapping",
        "deadline",
        "authentication",
        "admission",
    ]


async def test_stages_are_entered_outermost_first_and_left_innermost_first():
    journal = []

    async def handler(request, context):
        journal.append("handler")
        return request

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(handler), UNARY, [Recorder("a", journal), Recorder("b", journal)]
    )

    assert await wrapped.unary_unary("x", FakeContext()) == "x"
    assert journal == ["+a", "+b", "handler", "-b", "-a"]


async def test_a_stage_that_refuses_is_not_left_and_inner_ones_are_not_entered():
    journal = []
    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(None),
        UNARY,
        [Recorder("a", journal), Recorder("b", journal, refuse=ValueError("no")), Recorder("c", journal)],
    )

    with pytest.raises(ValueError, match="no"):
        await wrapped.unary_unary("x", FakeContext())
    assert journal == ["+a", "+b", "-a"]


async def requests(*messages):
    for message in messages:
        yield message


async def call_unary_unary(behaviour, context):
    wrapped = wrap_handler(grpc.unary_unary_rpc_method_handler(behaviour), UNARY, [Recorder("a", [])])
    return [await wrapped.unary_unary(1, context)]


async def call_stream_unary(behaviour, context):
    async def shaped(iterator, context):
        return await behaviour(await anext(iterator), context)

    wrapped = wrap_handler(grpc.stream_unary_rpc_method_handler(shaped), UNARY, [Recorder("a", [])])
    assert wrapped.request_streaming
    return [await wrapped.stream_unary(requests(1), context)]


async def call_unary_stream(behaviour, context):
    async def shaped(request, context):
        yield await behaviour(request, context)
        yield await behaviour(request + 1, context)

    wrapped = wrap_handler(grpc.unary_stream_rpc_method_handler(shaped), STREAM, [Recorder("a", [])])
    assert wrapped.response_streaming
    await wrapped.unary_stream(1, context)
    return context.written


async def call_stream_stream(behaviour, context):
    async def shaped(iterator, context):
        async for message in iterator:
            yield await behaviour(message, context)

    wrapped = wrap_handler(grpc.stream_stream_rpc_method_handler(shaped), STREAM, [Recorder("a", [])])
    assert wrapped.request_streaming
    assert wrapped.response_streaming
    await wrapped.stream_stream(requests(1, 2), context)
    return context.written


SHAPES = [call_unary_unary, call_stream_unary, call_unary_stream, call_stream_stream]


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_shape_answers(shape):
    async def behaviour(request, context):
        return request * 10

    assert (await shape(behaviour, FakeContext()))[0] == 10


@pytest.mark.parametrize("shape", SHAPES)
async def test_every_shape_is_aborted_once_with_its_status(shape, monkeypatch):
    async def behaviour(request, context):
        raise NotFound("nobody here", reason="TRANSACTION_NOT_FOUND")

    monkeypatch.setattr(f"{__name__}.Recorder", lambda name, journal: ErrorMapping())
    context = FakeContext()

    with pytest.raises(Aborted):
        await shape(behaviour, context)
    assert context.status.code is grpc.StatusCode.NOT_FOUND
    assert context.status.details == "nobody here"


async def test_a_handler_that_writes_its_responses_itself_works():
    """The health service's Watch is such a one: a coroutine and no generator."""
    health = Health()
    wrapped = wrap_handler(
        grpc.unary_stream_rpc_method_handler(health.Watch, health_pb2.HealthCheckRequest.FromString),
        STREAM,
        [ErrorMapping()],
    )
    context = FakeContext()

    watching = asyncio.create_task(wrapped.unary_stream(b"", context))
    await context.wrote.wait()
    context.wrote.clear()
    health.set_serving(True)
    await context.wrote.wait()
    health.close()
    with pytest.raises(Aborted):
        await watching

    assert [message.status for message in context.written] == [2, 1]


async def test_a_stream_that_is_cut_closes_its_handler():
    closed = []

    async def behaviour(request, context):
        try:
            yield 1
        finally:
            closed.append(True)

    class Broken(FakeContext):
        async def write(self, message):
            raise asyncio.CancelledError

    wrapped = wrap_handler(grpc.unary_stream_rpc_method_handler(behaviour), STREAM, [])

    with pytest.raises(asyncio.CancelledError):
        await wrapped.unary_stream(1, Broken())
    assert closed == [True]


async def test_a_message_that_does_not_parse_is_refused_inside_the_chain():
    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(None, health_pb2.HealthCheckRequest.FromString),
        UNARY,
        [ErrorMapping()],
    )
    context = FakeContext()

    with pytest.raises(Aborted):
        await wrapped.unary_unary(b"\xff\xff", context)
    assert context.status.code is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_answer_that_is_too_large_is_refused_with_its_size():
    async def behaviour(request, context):
        return b"x" * 101

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(behaviour, None, bytes), UNARY, [ErrorMapping()], 100
    )
    context = FakeContext()

    with pytest.raises(Aborted):
        await wrapped.unary_unary(b"", context)
    assert context.status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "101" in context.status.details


# --- error_mapping, deadline ------------------------------------------------------------------


async def code_seen(behaviour, *inner, context=None):
    """Return the code that a stage outside of error_mapping sees."""
    seen = []

    class Outer(Recorder):
        def leave(self, call):
            seen.append(call.code)

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(behaviour), UNARY, [Outer("o", []), ErrorMapping(), *inner]
    )
    task = asyncio.create_task(wrapped.unary_unary("x", context or FakeContext()))
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    return seen[0], outcome


async def raise_cancelled(request, context):
    raise asyncio.CancelledError


async def test_a_call_that_its_caller_gave_up_is_cancelled():
    code, outcome = await code_seen(raise_cancelled)

    assert code is grpc.StatusCode.CANCELLED
    assert isinstance(outcome, asyncio.CancelledError)


async def test_an_error_that_is_no_exception_is_answered_all_the_same():
    class Panic(BaseException):
        pass

    async def behaviour(request, context):
        raise Panic

    context = FakeContext()
    code, _ = await code_seen(behaviour, context=context)

    assert code is grpc.StatusCode.INTERNAL
    assert context.status.code is grpc.StatusCode.INTERNAL


async def test_a_stream_whose_caller_leaves_while_it_is_written_to_is_cancelled_and_no_fault():
    class Gone(FakeContext):
        async def write(self, message):
            raise grpc.aio.InternalError("Failed grpc_call_start_batch")

    async def behaviour(request, context):
        await context.write("answer")

    wrapped = wrap_handler(
        grpc.stream_stream_rpc_method_handler(behaviour), STREAM, [AccessLog(), ErrorMapping()]
    )
    with structlog.testing.capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await wrapped.stream_stream(iter(()), Gone())

    assert [(line["event"], line["code"]) for line in lines] == [("rpc", "CANCELLED")]


async def test_a_call_whose_deadline_passed_is_told_apart():
    code, _ = await code_seen(raise_cancelled, context=FakeContext(remaining=0))

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_timeout_is_a_deadline_exceeded():
    async def behaviour(request, context):
        raise TimeoutError

    context = FakeContext()
    code, outcome = await code_seen(behaviour, context=context)

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert isinstance(outcome, Aborted)
    assert context.status.code is code


async def wait_for_ever(request, context):
    await asyncio.Event().wait()


@pytest.mark.parametrize("remaining", [None, 100.0])
async def test_the_limit_ends_a_call_without_an_earlier_deadline(remaining):
    context = FakeContext(remaining)
    code, outcome = await code_seen(wait_for_ever, Deadline(0.001), context=context)

    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert isinstance(outcome, Aborted)


async def test_an_earlier_deadline_of_the_caller_needs_no_timer():
    timers = []

    async def behaviour(request, context):
        timers.append(current_call().stop_timer)
        return request

    await code_seen(behaviour, RequestContext(), Deadline(10), context=FakeContext(remaining=1.0))
    await code_seen(behaviour, RequestContext(), Deadline(10), context=FakeContext(remaining=11.0))

    assert timers[0] is None
    assert timers[1] is not None


async def test_a_call_that_ends_in_time_leaves_no_timer_behind():
    call = RpcCall(UNARY, FakeContext())
    deadline = Deadline(0.001)

    deadline.enter(call)
    deadline.leave(call)
    await asyncio.sleep(0.01)

    assert not call.timed_out


async def test_a_call_that_has_ended_is_gone_without_the_garbage_collector():
    seen = []

    async def behaviour(request, context):
        seen.append(weakref.ref(context))
        return request

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(behaviour), UNARY, [RequestContext(), Deadline(10)]
    )
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        # In a task of its own, as gRPC calls it: its context is that of the timer too.
        await asyncio.create_task(wrapped.unary_unary("request", FakeContext()))
        await asyncio.sleep(0)
        assert [context() for context in seen] == [None]
    finally:
        if was_enabled:
            gc.enable()


async def test_a_call_that_its_caller_gives_up_as_it_times_out_is_cancelled():
    class CancelledToo(Deadline):
        def leave(self, call):
            asyncio.current_task().cancel()
            super().leave(call)

    code, outcome = await code_seen(wait_for_ever, CancelledToo(0.001))

    assert code is grpc.StatusCode.CANCELLED
    assert isinstance(outcome, asyncio.CancelledError)


async def test_a_stream_lives_as_long_as_its_caller_wants():
    call = RpcCall(STREAM, FakeContext())
    Deadline(10).enter(call)

    assert call.stop_timer is None


# --- access_log -------------------------------------------------------------------------------


async def raise_key_error(request, context):
    raise KeyError("secret")


async def refuse(request, context):
    raise NotFound("secret", reason="TRANSACTION_NOT_FOUND")


async def answer(request, context):
    return request


@pytest.mark.parametrize(
    ("behaviour", "call_class", "level", "facts"),
    [
        (answer, CallClass.READ, "info", {"code": "OK"}),
        (answer, CallClass.EXEMPT, "debug", {"code": "OK"}),
        (refuse, CallClass.READ, "info", {"code": "NOT_FOUND", "reason": "TRANSACTION_NOT_FOUND"}),
        (raise_key_error, CallClass.READ, "error", {"code": "INTERNAL"}),
        (raise_key_error, CallClass.EXEMPT, "error", {"code": "INTERNAL"}),
    ],
)
async def test_the_line_of_a_call(behaviour, call_class, level, facts):
    method = Method("/s/M", "M", call_class, is_stream=False)
    with structlog.testing.capture_logs() as lines:
        wrapped = wrap_handler(
            grpc.unary_unary_rpc_method_handler(behaviour),
            method,
            [RequestContext(), AccessLog(), ErrorMapping()],
        )
        await asyncio.gather(
            asyncio.create_task(wrapped.unary_unary("x", FakeContext())), return_exceptions=True
        )

    (line,) = [line for line in lines if line["event"] == "rpc"]
    assert line.pop("ms") >= 0
    assert line == {"event": "rpc", "method": "M", "log_level": level, **facts}


# --- admission --------------------------------------------------------------------------------


async def blocked_call(admission, method=UNARY):
    """Return a call being served, and what lets it end."""
    go_on = asyncio.Event()
    is_in = asyncio.Event()

    async def behaviour(request, context):
        is_in.set()
        await go_on.wait()
        return request

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(behaviour), method, [ErrorMapping(), admission]
    )
    task = asyncio.create_task(wrapped.unary_unary("x", FakeContext()))
    await is_in.wait()
    return task, go_on


async def refusal(admission, method=UNARY):
    async def behaviour(request, context):
        return request

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(behaviour), method, [ErrorMapping(), admission]
    )
    context = FakeContext()
    try:
        await wrapped.unary_unary("x", context)
    except Aborted:
        return context.status
    return None


async def test_a_class_of_calls_is_bounded_and_others_are_not_touched():
    admission = Admission({CallClass.READ: 1, CallClass.CHANGE: 1})
    task, go_on = await blocked_call(admission)

    refused = await refusal(admission)
    assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert any("RetryInfo" in str(value) for _, value in refused.trailing_metadata)
    assert await refusal(admission, Method("/s/E", "E", CallClass.CHANGE, is_stream=False)) is None
    go_on.set()
    await task
    assert await refusal(admission) is None


async def test_health_checks_are_exempt_from_bounds_and_draining():
    admission = Admission({})
    exempt = Method("/s/H", "H", CallClass.EXEMPT, is_stream=False)
    admission.begin_drain()

    assert await refusal(admission, exempt) is None
    assert (await refusal(admission)).code is grpc.StatusCode.UNAVAILABLE


async def test_draining_ends_when_the_last_call_has_ended():
    admission = Admission({CallClass.READ: 5})
    task, go_on = await blocked_call(admission)
    admission.begin_drain()
    drained = asyncio.create_task(admission.drained())
    await asyncio.sleep(0)
    assert not drained.done()

    go_on.set()
    await task
    await drained
    assert admission.in_flight == 0


def call_of(principal, method=UNARY):
    call = RpcCall(method, FakeContext())
    call.identity = Identity(principal, frozenset(Role))
    return call


async def test_one_caller_does_not_take_every_place():
    admission = Admission({CallClass.READ: 3, CallClass.STEP: 3}, {CallClass.READ: 1, CallClass.STEP: 0})
    first = call_of("ann")
    admission.enter(first)
    refused = call_of("ann")
    with pytest.raises(TooManyCalls) as told:
        admission.enter(refused)
    assert told.value.metadata == {"class": "READ", "limit": "1", "of": "principal"}
    admission.leave(refused)
    bobs = call_of("bob")
    admission.enter(bobs)
    for call in (first, bobs):
        admission.leave(call)
    assert admission.in_flight == 0
    again = call_of("ann")
    admission.enter(again)
    admission.leave(again)
    steps = [call_of("ann", Method("/s/E", "E", CallClass.STEP, is_stream=False)) for _ in range(3)]
    for call in steps:
        admission.enter(call)
    assert admission.in_flight == 3


async def test_draining_an_idle_server_ends_at_once():
    admission = Admission({CallClass.READ: 5})
    assert await refusal(admission) is None
    admission.begin_drain()

    await admission.drained()


# --- the rest ---------------------------------------------------------------------------------


async def test_the_handler_sees_who_calls():
    async def behaviour(request, context):
        return current_call().principal

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(behaviour),
        replace(UNARY, roles=None),
        [RequestContext(), Authentication()],
    )

    assert await wrapped.unary_unary("x", FakeContext()) == "anonymous"


async def test_calls_are_counted_by_method_and_code_cancelled_ones_too():
    metrics = Metrics()

    async def succeed(request, context):
        return request

    for behaviour in (succeed, succeed, raise_cancelled):
        wrapped = wrap_handler(
            grpc.unary_unary_rpc_method_handler(behaviour), UNARY, [RequestContext(), metrics, ErrorMapping()]
        )
        await asyncio.gather(
            asyncio.create_task(wrapped.unary_unary("x", FakeContext())), return_exceptions=True
        )

    counts = {key: seen.count for key, seen in metrics.by_method_and_code.items()}
    assert counts == {("M", grpc.StatusCode.OK): 2, ("M", grpc.StatusCode.CANCELLED): 1}
    assert len(metrics.by_method_and_code["M", grpc.StatusCode.OK].counts) == len(BUCKETS_SECONDS) + 1
    assert metrics.active == {"M": 0}


async def test_how_long_a_call_took_is_counted_from_its_entry_into_the_chain(monkeypatch):
    now = [0.0]
    stepped = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(metrics_stage, "time", stepped)
    monkeypatch.setattr(request_context, "time", stepped)
    metrics = Metrics()
    for seconds in (0.001, 0.0011, 2.0, 100.0):
        now[0] = 0.0  # so that sums are exact: a bound belongs to what is below it

        async def last(request, context, seconds=seconds):
            now[0] += seconds
            return request

        wrapped = wrap_handler(grpc.unary_unary_rpc_method_handler(last), UNARY, [RequestContext(), metrics])
        await asyncio.create_task(wrapped.unary_unary("x", FakeContext()))

    reading = metrics.by_method_and_code["M", grpc.StatusCode.OK].read()
    bounds = [*reading.bounds, "above"]
    counted = {bound: count for bound, count in zip(bounds, reading.counts, strict=True) if count}
    assert counted == {0.001: 1, 0.0025: 1, 2.5: 1, "above": 1}
    assert reading.sum == pytest.approx(102.0021)


async def test_a_wrapped_handler_is_made_once_and_unknown_methods_are_not_kept():
    chain = InterceptorChain([], lambda path: UNARY, 100)
    made = []

    async def continuation(details):
        made.append(details.method)
        return None if details.method == "/unknown" else grpc.unary_unary_rpc_method_handler(None)

    first = await chain.intercept_service(continuation, SimpleNamespace(method="/known"))
    second = await chain.intercept_service(continuation, SimpleNamespace(method="/known"))
    for _ in range(2):
        assert await chain.intercept_service(continuation, SimpleNamespace(method="/unknown")) is not None

    assert first is second
    assert made == ["/known", "/unknown", "/unknown"]


async def test_log_lines_of_a_call_say_which_one_it_is():
    async def behaviour(request, context):
        return call_facts()

    wrapped = wrap_handler(
        grpc.unary_unary_rpc_method_handler(
            behaviour,
            lambda raw: SimpleNamespace(
                transaction_id="t-1", step_id=3, request_id="r\n1", arguments_json="secret"
            ),
        ),
        UNARY,
        [RequestContext()],
    )

    facts = await wrapped.unary_unary(b"", FakeContext())

    assert facts == {"method": "M", "transaction": "t-1", "step": 3, "request_id": "r\\n1"}


class Answer:
    transaction_id = "t-2"


async def test_what_a_call_left_behind_does_not_hold_its_messages():
    async def behaviour(request, context):
        return Answer()

    wrapped = wrap_handler(grpc.unary_unary_rpc_method_handler(behaviour, None), UNARY, [RequestContext()])
    response = weakref.ref(await wrapped.unary_unary(b"", FakeContext()))

    assert response() is None
    assert call_facts() == {"method": "M", "transaction": "t-2"}


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (StoreUnavailable("gone"), True),
        (Unavailable("the database could not serve this call now"), True),
        (Unavailable("the server is shutting down", reason="DRAINING"), False),
        (NotFound("no such transaction", reason="TRANSACTION_NOT_FOUND"), False),
        (ValueError("a fault of ours"), False),
    ],
)
def test_only_calls_that_the_database_did_not_serve_are_told_of(error, is_told):
    told = []
    mapping = ErrorMapping(lambda: told.append(True))
    mapping.leave(SimpleNamespace(error=error, context=FakeContext(), status=None, code=None))
    assert bool(told) is is_told


async def test_one_tenant_does_not_take_every_place():
    bounds = {"acme": {CallClass.READ: 2}}
    admission = Admission({CallClass.READ: 5}, None, None, lambda tenant: bounds.get(tenant, {}))
    calls = [call_of("@acme/ann"), call_of("@acme/bob")]
    for call in calls:
        admission.enter(call)
    refused = call_of("@acme/carl")
    with pytest.raises(TooManyCalls, match="your tenant's") as told:
        admission.enter(refused)
    assert told.value.metadata == {"class": "READ", "limit": "2", "of": "tenant"}
    assert told.value.retry_after_seconds
    admission.leave(refused)
    others = [call_of("ann"), call_of("@other/ann"), call_of("bob")]
    for call in others:
        admission.enter(call)
    admission.leave(calls[0])
    admission.enter(refused)
    for call in (*others, calls[1], refused):
        admission.leave(call)
    assert admission.in_flight == 0
    assert not admission._taken
