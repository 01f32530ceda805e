"""``http.*``: requests to other services, one tool for each thing that can be promised about them.

    http.get            READ_ONLY       GET and HEAD
    http.request        COMPENSATABLE   any method, with the request that undoes it
    http.idempotent     IDEMPOTENT      PUT and DELETE; POST and PATCH where the service honours Idempotency-Key
    http.irreversible   IRREVERSIBLE    anything else

An effect class belongs to a tool and not to a call, since recovery, approval and whoever reads a list of
tools rely on it without seeing arguments (decision 0015).
"""

# ruff: noqa: D417 — ctx is not an argument of the tools

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from agenttx.tools.call_context import ToolCallContext
from agenttx.tools.call_port import UndoContext
from agenttx.tools.definition import AnyTool, tool
from agenttx_server.engine.ports import OutcomeUnknown, ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.http_hosts import HostPattern, any_matches
from agenttx_server.http_secrets import Secrets
from agenttx_server.retry_after import retry_after_seconds
from agenttx_server.tools.http.answer_body import output_of
from agenttx_server.tools.http.answers import Answer, AnswerLost, NotDone
from agenttx_server.tools.http.http_client import HttpClient
from agenttx_server.tools.http.outgoing import SAFE_METHODS, Outgoing
from agenttx_server.tools.http.request_form import RequestForm, made_ready
from agenttx_server.tools.http.undo_request import UndoRequest
from agenttx_server.tools.http.verdicts import Verdict, fail, is_gateway_error, verdict_on

__all__ = ["HttpTools"]

# Of a step's time so much is left for recording what came of the request.
RESERVE_SECONDS = 0.5
# How often one call waits as long as Retry-After says.
MOST_WAITS = 3
RETRIES = 2

_RETRIED_METHODS: Final = frozenset({"PUT", "DELETE"})

Url = Annotated[str, Field(min_length=1, max_length=8192)]
Headers = Annotated[dict[str, str], Field(max_length=64)]
Statuses = Annotated[list[Annotated[int, Field(ge=200, le=599)]], Field(max_length=32)]
Method = Literal["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]
ChangingMethod = Literal["POST", "PUT", "PATCH", "DELETE"]


class UndoArgument(TypedDict):
    """The request that takes the effect back."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    method: ChangingMethod
    url: Annotated[str, Field(min_length=1, max_length=8192)]
    headers: NotRequired[Annotated[dict[str, str], Field(max_length=64)]]
    body: NotRequired[Any]
    expect: NotRequired[Annotated[list[Annotated[int, Field(ge=200, le=599)]], Field(max_length=32)]]


class HttpTools:
    """The tools over one client.

    Args:
        client: what sends.
        secrets: by name.
        honouring_keys: services that answer a request sent again under one Idempotency-Key with what they
            answered first.
    """

    def __init__(self, client: HttpClient, secrets: Secrets, honouring_keys: Sequence[HostPattern]) -> None:
        self._client = client
        self._secrets = secrets
        self._honouring_keys = tuple(honouring_keys)

    def tools(self) -> list[AnyTool]:
        """Return the tools."""

        @tool("http.get", effects="read_only", retries=RETRIES)
        async def get(
            ctx: ToolCallContext,
            url: Url,
            headers: Headers = {},  # noqa: B006 — never changed
            method: Literal["GET", "HEAD"] = "GET",
            expect: Statuses = [],  # noqa: B006
        ) -> dict[str, Any]:
            """Read from a web service.

            Only hosts that the server allows. `${secret.NAME}` in the URL's path or query and in values of
            headers is replaced by a secret of the server.

            Args:
                url: https://host/path?query.
                headers: by name.
                method: GET or HEAD.
                expect: statuses that are no failure; by default 200 to 299.

            Returns:
                {"status", "url", "headers", "body"}: names of headers in lower case; the body as JSON if it is
                JSON, else as text; bytes under "body_base64".
            """
            outgoing = self._outgoing(RequestForm(method, url, headers), ctx)
            try:
                answer = await self._patient(ctx, outgoing, expect, repeatable=True)
            except AnswerLost as lost:
                raise ToolFailure(lost.category, f"{lost.message}. Try again later.") from None
            if answer.cut is not None:
                raise ToolFailure(answer.cut.category, f"{answer.cut.message}. Ask for less, or again later.")
            if verdict_on(answer.status, expect) is Verdict.EXPECTED:
                return output_of(answer, self._secrets)
            fail(answer, self._secrets)

        @tool("http.request", effects="compensatable")
        async def request(
            ctx: ToolCallContext,
            method: Method,
            url: Url,
            headers: Headers = {},  # noqa: B006
            body: Any = None,
            expect: Statuses = [],  # noqa: B006
            undo: UndoArgument | None = None,
        ) -> dict[str, Any]:
            """Send a request that can be undone: a rewind sends the one under `undo`.

            In `undo`, `${response.body.id}`, `${response.headers.location}` and `${arguments.body.x}` stand for
            values of the answer and of these arguments; it is sent with an Idempotency-Key, and 404 and 410
            count as undone. `${secret.NAME}` in the URL's path or query, in values of headers and in the body is
            replaced by a secret of the server. Use http.idempotent or http.irreversible where there is no undo.

            Args:
                method: GET, HEAD and OPTIONS need no undo.
                url: https://host/path?query.
                headers: by name; Idempotency-Key is added.
                body: sent as it is if it is a string, else as JSON.
                expect: statuses that are no failure; by default 200 to 299.
                undo: {"method", "url", "headers", "body", "expect"} of the request that undoes this one.

            Returns:
                {"status", "url", "headers", "body"} as of http.get.
            """
            form = RequestForm(method, url, headers, body)
            if method in SAFE_METHODS:
                return await get.function(ctx, url, headers, method, expect)  # type: ignore[arg-type]
            if undo is None:
                raise ToolFailure(
                    HintCategory.MISSING_ARGUMENT,
                    f"http.request needs 'undo', the request that takes this {method} back. Give it, or use "
                    "http.idempotent or http.irreversible.",
                    ("undo",),
                )
            arguments = {"method": method, "url": url, "headers": headers, "body": body}
            return await self._undoable(ctx, form, expect, UndoRequest.declared(undo, arguments))

        @request.undo("http.undo")
        async def undo_request(
            ctx: UndoContext,
            request: dict[str, Any],
            values: dict[str, Any],
            outcome: str,
            ask_again: dict[str, Any] | None = None,
        ) -> None:
            await self._undo(ctx, UndoRequest(request, values, outcome, ask_again))

        @tool("http.idempotent", effects="idempotent", retries=RETRIES)
        async def idempotent(
            ctx: ToolCallContext,
            method: ChangingMethod,
            url: Url,
            headers: Headers = {},  # noqa: B006
            body: Any = None,
            expect: Statuses = [],  # noqa: B006
        ) -> dict[str, Any]:
            """Send a request that is safe to repeat and stays: PUT and DELETE, or any to a service that honours Idempotency-Key.

            A rewind does not take it back. Which services honour the key is set in the server.

            Args:
                method: POST and PATCH only to services that honour Idempotency-Key.
                url: https://host/path?query.
                headers: by name; Idempotency-Key is added.
                body: sent as it is if it is a string, else as JSON.
                expect: statuses that are no failure; by default 200 to 299.

            Returns:
                {"status", "url", "headers", "body"} as of http.get.
            """
            outgoing = self._outgoing(RequestForm(method, url, headers, body), ctx)
            if method not in _RETRIED_METHODS and not self._honours_keys(outgoing):
                raise ToolFailure(
                    HintCategory.INVALID_VALUE,
                    f"{outgoing.target.host} is not known to honour Idempotency-Key, so a {method} is not safe to "
                    "repeat. Use http.request with 'undo', or http.irreversible.",
                    ("method",),
                )
            answer = await self._or_unknown(ctx, outgoing, expect, repeatable=True)
            verdict = verdict_on(answer.status, expect)
            if verdict is Verdict.DONE or (verdict is Verdict.UNCLEAR and is_gateway_error(answer.status)):
                raise OutcomeUnknown(f"{outgoing.target.host} answered {answer.status}")
            if verdict is not Verdict.EXPECTED:
                fail(answer, self._secrets)
            return output_of(answer, self._secrets)

        @tool("http.irreversible", effects="irreversible")
        async def irreversible(
            ctx: ToolCallContext,
            method: ChangingMethod,
            url: Url,
            headers: Headers = {},  # noqa: B006
            body: Any = None,
            expect: Statuses = [],  # noqa: B006
        ) -> dict[str, Any]:
            """Send a request that can be neither undone nor repeated. Nothing before it can be rewound without an explicit word.

            If the answer is lost, or is a server error (5xx), the step is in doubt until somebody says what
            became of it. Prefer http.request with `undo`.

            Args:
                method: POST, PUT, PATCH or DELETE.
                url: https://host/path?query.
                headers: by name; Idempotency-Key is added.
                body: sent as it is if it is a string, else as JSON.
                expect: statuses that are no failure; by default 200 to 299.

            Returns:
                {"status", "url", "headers", "body"} as of http.get.
            """
            outgoing = self._outgoing(RequestForm(method, url, headers, body), ctx)
            answer = await self._or_unknown(ctx, outgoing, expect, repeatable=False)
            verdict = verdict_on(answer.status, expect)
            if verdict is Verdict.REFUSED:
                fail(answer, self._secrets)
            if verdict is not Verdict.EXPECTED:
                raise OutcomeUnknown(f"{outgoing.target.host} answered {answer.status}")
            try:
                return output_of(answer, self._secrets)
            except Exception as error:  # it has taken effect: nothing here may call it a failure
                raise OutcomeUnknown(f"the answer can't be read ({type(error).__name__})") from None

        tools: list[AnyTool] = [get, request, idempotent, irreversible]
        for each in tools:
            each.reads_templates = True
        return tools

    # --- with an undo ---------------------------------------------------------------------

    async def _undoable(
        self, ctx: ToolCallContext, form: RequestForm, expect: Statuses, undo: UndoRequest
    ) -> dict[str, Any]:
        outgoing = self._outgoing(form, ctx)
        self._client.check_allowed(outgoing.target)
        undo.check_before(self._client, self._secrets, ctx.idempotency_key)
        if self._honours_keys(outgoing):
            undo = undo.that_may_ask_again(form)
        # Before the request, so that a crash can't lose it; what it needs of the answer is added after.
        await ctx.register_undo("http.undo", **undo.arguments())
        try:
            answer = await self._patient(ctx, outgoing, expect, repeatable=False)
        except NotDone:
            await ctx.update_undo("http.undo", **undo.needless().arguments())
            raise
        except AnswerLost as lost:
            raise ToolFailure(
                lost.category,
                f"{lost.message}; whether it took effect is not known. It is undone, then try again.",
            ) from None
        verdict = verdict_on(answer.status, expect)
        if verdict is Verdict.REFUSED:
            await ctx.update_undo("http.undo", **undo.needless().arguments())
        if verdict in (Verdict.REFUSED, Verdict.UNCLEAR):
            fail(answer, self._secrets)
        if answer.cut is not None and undo.needs_body:
            raise ToolFailure(
                answer.cut.category, f"{answer.cut.message}, which its undo needs. Try again later."
            )
        output = output_of(answer, self._secrets)
        completed = undo.completed(answer, self._secrets)
        await ctx.update_undo("http.undo", **completed.arguments())
        if completed.missing:
            raise ToolFailure(
                HintCategory.MISSING_KEY,
                f"the answer has no '{completed.missing[0]}' (or a secret stands in it), which its undo needs. "
                "Undo it by hand, and correct 'undo'.",
                tuple(name.rpartition(".")[2] for name in completed.missing),
            )
        if verdict is Verdict.DONE:
            fail(answer, self._secrets)
        return output

    async def _undo(self, ctx: UndoContext, undo: UndoRequest) -> None:
        """Send the undo request; what it has to know of the answer may have to be asked for again."""
        if undo.outcome == "none":
            return
        if undo.outcome == "unknown" and undo.needs_response:
            if undo.ask_again is None:
                raise ToolFailure(
                    HintCategory.UNKNOWN,
                    "whether the request took effect is not known, and undoing it needs its answer. Look, undo it "
                    "by hand if it did, then resolve this.",
                )
            again = made_ready(RequestForm.of(undo.ask_again), {}, self._secrets, ctx.idempotency_key)
            answer = await self._sent_for_undo(again)
            verdict = verdict_on(answer.status, ())
            if undo.says_not_done(answer.status):
                return
            if verdict is not Verdict.EXPECTED or answer.cut is not None:
                fail(answer, self._secrets)
            undo = undo.completed(answer, self._secrets)
        if undo.missing:
            raise ToolFailure(
                HintCategory.MISSING_KEY,
                f"the answer had no '{undo.missing[0]}' (or a secret stood in it), which the undo needs. Undo it by hand, then resolve this.",
            )
        outgoing = made_ready(undo.form, undo.values, self._secrets, f"{ctx.idempotency_key}.undo")
        answer = await self._sent_for_undo(outgoing)
        gone = answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)
        if not gone and verdict_on(answer.status, undo.expect) is not Verdict.EXPECTED:
            fail(answer, self._secrets)

    async def _sent_for_undo(self, outgoing: Outgoing) -> Answer:
        try:
            return await self._client.send(outgoing, self._client.limits.timeout_seconds)
        except AnswerLost as lost:
            raise ToolFailure(lost.category, f"{lost.message}. It is tried again.") from None

    # --- the rest -------------------------------------------------------------------------

    def _outgoing(self, form: RequestForm, ctx: ToolCallContext) -> Outgoing:
        return made_ready(form, {}, self._secrets, ctx.idempotency_key)

    def _honours_keys(self, outgoing: Outgoing) -> bool:
        return any_matches(self._honouring_keys, *outgoing.target.origin)

    async def _or_unknown(
        self, ctx: ToolCallContext, outgoing: Outgoing, expect: Statuses, *, repeatable: bool
    ) -> Answer:
        try:
            return await self._patient(ctx, outgoing, expect, repeatable=repeatable)
        except AnswerLost as lost:
            raise OutcomeUnknown(lost.message) from None

    async def _patient(
        self, ctx: ToolCallContext, outgoing: Outgoing, expect: Statuses, *, repeatable: bool
    ) -> Answer:
        """Send; wait and send again where the service asks for it, did nothing, and the step's time allows."""
        for waits in range(MOST_WAITS + 1):
            answer = await self._client.send(outgoing, ctx.seconds_left - RESERVE_SECONDS)
            seconds = _wait_asked_for(answer, repeatable=repeatable)
            if answer.status in expect or seconds is None or waits == MOST_WAITS:
                break
            if seconds > ctx.seconds_left - 2 * RESERVE_SECONDS:
                break
            await asyncio.sleep(seconds)
        return answer


def _wait_asked_for(answer: Answer, *, repeatable: bool) -> float | None:
    """Return the wait that Retry-After asks for; None where the request may have been done, or none is asked for."""
    waits = {HTTPStatus.TOO_MANY_REQUESTS}
    if repeatable:
        waits.add(HTTPStatus.SERVICE_UNAVAILABLE)
    if answer.status not in waits:
        return None
    return retry_after_seconds(answer.header("retry-after"), time.time())
