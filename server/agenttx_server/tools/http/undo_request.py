"""The request that undoes another one, in the three states in which it is kept.

It is registered before the request is sent, as ``unknown``: nobody knows yet whether there is anything to
undo, and it lacks what it needs of the answer. Once the answer is there it is ``done``, with these values
beside it, or ``none``, where the request was refused. A server that dies in between leaves it unknown:

- an undo that needs nothing of the answer is sent all the same (404 and 410 count as undone);
- else the request is sent again, where the service honours Idempotency-Key: it answers what it answered
  the first time, or does it now, and either way the answer says what is to be undone;
- else nobody can know, and the undo fails until a person has looked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from agenttx_server.engine.records import HintCategory
from agenttx_server.http_secrets import Secrets
from agenttx_server.tools.http.answer_body import output_of
from agenttx_server.tools.http.answers import Answer, NotDone
from agenttx_server.tools.http.http_client import HttpClient
from agenttx_server.tools.http.request_form import LOCATIONS, RequestForm, made_ready
from agenttx_server.tools.http.templates import BadTemplate, MissingValue, value_at, without_escapes

__all__ = ["UndoRequest"]

# To a request sent again: what was never done, and is turned down still. (409, 429 or 401 may be about this try.)
_NOT_DONE: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.GONE,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)


@dataclass(frozen=True, slots=True)
class UndoRequest:
    """``request`` has templates and ``values`` what is known for them; secrets stay names."""

    request: Mapping[str, Any]
    values: Mapping[str, Any]
    outcome: str = "unknown"
    ask_again: Mapping[str, Any] | None = None

    @classmethod
    def declared(cls, undo: Mapping[str, Any], arguments: Mapping[str, Any]) -> UndoRequest:
        """Return what an agent declared, the values of its own arguments beside it. Raises NotDone."""
        try:
            names = RequestForm.of(undo).names()
            values = {
                name: without_escapes(value_at(name, {"arguments": arguments}))
                for name in sorted(names)
                if name.startswith("arguments.")
            }
        except BadTemplate as error:
            raise NotDone(HintCategory.INVALID_VALUE, f"undo: {error}. Correct it.", ("undo",)) from None
        except MissingValue as error:
            raise NotDone(
                HintCategory.MISSING_KEY,
                f"undo: there is nothing for ${{{error.name}}}. Refer to an argument that is there.",
                (error.key,),
            ) from None
        return cls(undo, values)

    @property
    def form(self) -> RequestForm:
        """The request with its templates."""
        return RequestForm.of(self.request)

    @property
    def expect(self) -> list[int]:
        """Statuses that mean that it was undone; none are every 2xx."""
        return list(self.request.get("expect") or [])

    @property
    def needs_response(self) -> bool:
        """Whether it takes anything from the answer."""
        return any(name.startswith("response.") for name in self.form.names())

    @property
    def needs_body(self) -> bool:
        """Whether it takes anything from the answer's body."""
        return any(name.startswith("response.body") for name in self.form.names())

    @property
    def missing(self) -> list[str]:
        """What the answer lacks of what it takes, once there is one."""
        if self.outcome != "done":
            return []
        wanted = {name for name in self.form.names() if name.startswith("response.")}
        return sorted(wanted - set(self.values))

    def arguments(self) -> dict[str, Any]:
        """Return it as the undo action's arguments, as which it is kept."""
        return {
            "request": dict(self.request),
            "values": dict(self.values),
            "outcome": self.outcome,
            "ask_again": None if self.ask_again is None else dict(self.ask_again),
        }

    def that_may_ask_again(self, form: RequestForm) -> UndoRequest:
        """Return it with the request that it is for, which its service answers the same way twice."""
        again = {"method": form.method, "url": form.url, "headers": dict(form.headers), "body": form.body}
        return replace(self, ask_again=again)

    def needless(self) -> UndoRequest:
        """Return it for a request that had no effect."""
        return replace(self, outcome="none", ask_again=None)

    def completed(self, answer: Answer, secrets: Secrets) -> UndoRequest:
        """Return it with what it takes from the answer, no secret in it.

        A Location is joined with the URL that was asked for, in which secrets may stand; they become templates
        again. Any other value that holds one counts as missing: masked, it would be another thing's name.
        """
        values = dict(self.values)
        roots = {"response": output_of(answer, Secrets())}
        for name in self.form.names():
            if not name.startswith("response."):
                continue
            try:
                value = value_at(name, roots)
                if name in LOCATIONS:
                    value = secrets.named(answer.target.joined(value).url)
                    if value is None:
                        continue
            except (MissingValue, ValueError):
                continue
            if secrets.mask_json(value) == value:
                values[name] = value
        return replace(self, values=values, outcome="done", ask_again=None)

    def says_not_done(self, status: int) -> bool:
        """Whether a status, to the request sent again, says that it was never done."""
        return status in _NOT_DONE

    def check_before(self, client: HttpClient, secrets: Secrets, key: str) -> None:
        """Refuse, while nothing has happened yet, an undo that could not be sent. Raises NotDone."""
        names = self.form.names()
        # Where the answer says where it goes, only the answer can tell whether it may.
        if self.form.url.startswith("${response."):
            return
        stand_ins = {name: "1" for name in names if name.startswith("response.")}
        try:
            outgoing = made_ready(self.form, {**self.values, **stand_ins}, secrets, f"{key}.undo")
            client.check_allowed(outgoing.target)
        except NotDone as error:
            raise NotDone(error.category, f"undo: {error.message}", ("undo",)) from None
