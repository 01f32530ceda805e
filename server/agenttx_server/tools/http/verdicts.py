"""What an answer's status says about the request: done, refused, or neither for certain."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from http import HTTPStatus
from typing import Final, NoReturn

from agenttx_server.engine.ports import ReportedFailure, ToolFailure
from agenttx_server.engine.records import HintCategory
from agenttx_server.http_secrets import Secrets
from agenttx_server.tools.http.answer_body import text_of
from agenttx_server.tools.http.answers import Answer
from agenttx_server.tools.http.target import origin_text

__all__ = ["Verdict", "fail", "is_gateway_error", "verdict_on"]

QUOTED_CHARACTERS = 16 * 1024

# Servers that answer so looked at the request and turned it down as one they can't or won't serve here.
# (302 and 303 are how forms that took effect are answered.)
_REFUSING: Final = frozenset(
    {
        HTTPStatus.MULTIPLE_CHOICES,
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
        HTTPStatus.NOT_IMPLEMENTED,
        HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
        HTTPStatus.NETWORK_AUTHENTICATION_REQUIRED,
    }
)
_GATEWAY_ERRORS: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT})
# A proxy's word for a client that went away while the request ran (nginx).
_CLIENT_CLOSED: Final = 499


class Verdict(Enum):
    """DONE has its effect; EXPECTED too, and is what was asked for; REFUSED has none; UNCLEAR may have it."""

    EXPECTED = auto()
    DONE = auto()
    REFUSED = auto()
    UNCLEAR = auto()


def verdict_on(status: int, expect: Collection[int]) -> Verdict:
    """Judge a final status; ``expect`` empty is every 2xx."""
    if status in expect or (not expect and 200 <= status < 300):
        return Verdict.EXPECTED
    if 200 <= status < 300:
        return Verdict.DONE
    if status in _REFUSING or (400 <= status < 500 and status != _CLIENT_CLOSED):
        return Verdict.REFUSED
    return Verdict.UNCLEAR


def is_gateway_error(status: int) -> bool:
    """Whether a gateway says that the answer of the server behind it was lost."""
    return status in _GATEWAY_ERRORS


def fail(answer: Answer, secrets: Secrets) -> NoReturn:
    """Raise what an unexpected answer is: an error for the hint rules to read, or one in our own words."""
    if answer.status < 400:
        location = secrets.mask(answer.header("location"))[:100]
        leads = f", leading to {location}" if location else ""
        raise ToolFailure(
            HintCategory.HTTP_CLIENT_ERROR,
            f"{origin_text(answer.target)} answered {answer.status}{leads}, which was not expected. "
            "Check the URL, or list the status under 'expect'.",
            ("expect",),
        )
    lines = [f"HTTP/1.1 {answer.status} {answer.reason or _phrase(answer.status)}".rstrip()]
    retry_after = answer.header("retry-after")
    if retry_after:
        lines.append(f"Retry-After: {retry_after[:64]}")
    raise ReportedFailure(secrets.mask("\n".join([*lines, "", text_of(answer)]))[:QUOTED_CHARACTERS])


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
