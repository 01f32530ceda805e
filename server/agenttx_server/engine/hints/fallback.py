"""When no rule matched: the most telling line; and facts from around a finding that its own line lacks."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice
from typing import Final

from agenttx_server.engine.records import HintCategory as C

from .causes import ErrorText
from .rule import Cause, Finding
from .vocabulary import ADVICE
from .wording import SAID_NOTHING, safe_message

__all__ = ["fallback_finding", "with_context"]

_WAIT: Final = re.compile(
    r"(?:[Rr]etry[- _]?[Aa]fter\"?'?[:=]?\s{0,3}\"?'?|[Tt]ry again in |"
    r"retryDelay\"?'?:\s{0,3}\"?'?|[Rr]etry in |[Ww]ait (?:for )?|available in )"
    r"(?:about )?((\d{1,7}(?:\.\d{1,6})?)(?:\s?(ms|milliseconds?|s(?:ec(?:ond)?s?)?|"
    r"m(?:in(?:ute)?s?)?|h(?:ours?)?))?)\b"
)
# A name is looked for from its beginning only: a long word would be read again from each of its letters.
_ADDRESS: Final = re.compile(
    r"host='([^'\s]{1,200})', port=(\d{1,5})|https?://([^\s/'\"<>)\]\\]{1,200})|"
    r"\b(\d{1,3}(?:\.\d{1,3}){3}:\d{2,5})\b|((?<![\w.\-])[\w.\-]{1,200}+:\d{2,5})\b(?=[^\d.]|$)"
)
_URL: Final = re.compile(r"https?://[^\s'\"<>)\]\\]{1,300}")
_REQUEST: Final = re.compile(
    r"\b(?:on (?:get|put|post|delete|list|patch)|for url:?|during \[\w{3,7}\] to) "
    r"\[?(https?://[^\s'\"<>)\]\\]{1,300})"
)
# Letters first, which is what a search is quick at, then back to the word's start.
_SAYS_ERROR: Final = re.compile(
    r"[EeFfCcDd](?<!\w.)(?i:(?<=e)rror|(?<=f)(?:atal|ailed|ailure)|(?<=c)(?:annot|ould not)|(?<=d)enied)\b"
)
_SOURCE_FILES: Final = (".py", ".js", ".ts", ".java", ".kt", ".go", ".rb", ".cs", ".php", ".rs")  # of frames
_LINES_SHOWN: Final = 3
_UNHELPFUL: Final = re.compile(r"(?:hint: |warning: |note: |npm notice|\s)", re.IGNORECASE)


def fallback_finding(error: ErrorText) -> Finding:
    """The finding without a rule: the deepest cause that says anything, on one line."""
    cause = next((cause for cause in error.causes if cause.message or cause.type_name), error.causes[0])
    return Finding(None, C.UNKNOWN, _salient(cause), ADVICE[C.UNKNOWN], (), 0, cause.text)


def _salient(cause: Cause) -> str:
    name = cause.type_name.rsplit(".", 1)[-1]
    lines = [line for line in (cause.message or cause.text).split("\n") if line.strip()]
    if not lines:
        return name or SAID_NOTHING
    if cause.type_name:
        text = " ".join(line.strip() for line in lines[:4])
        return f"{name}: {safe_message(text)}"
    telling = [line for line in lines if not _UNHELPFUL.match(line)] or lines
    marked = list(islice((line for line in telling if _SAYS_ERROR.search(line[:300])), _LINES_SHOWN))
    return safe_message(" ".join(line.strip() for line in (marked or telling)[:_LINES_SHOWN]))


def with_context(finding: Finding, text: str) -> Finding:
    """``finding`` with the wait or the address that stands elsewhere in ``text``."""
    if finding.category is C.RATE_LIMITED or finding.category is C.HTTP_SERVER_ERROR:
        return _with_wait(finding, text)
    if finding.category is C.CONNECTION or finding.category is C.TIMEOUT:
        return _with_address(finding, text)
    if finding.category is C.PERMISSION_DENIED or finding.category is C.AUTHENTICATION:
        request = _REQUEST.search(text) if "://" in text else None
        if request is not None and request[1] not in finding.says:
            return replace(finding, says=f"{finding.says.rstrip('.')} ({safe_message(request[1], 120)})")
    return finding


def _with_wait(finding: Finding, text: str) -> Finding:
    wait = _WAIT.search(text)
    if wait is None or wait[2] in finding.says or wait[2] in finding.advice:
        return finding
    return replace(finding, advice=f"Wait {wait[1] if wait[3] else wait[2] + ' s'}, then retry.")


def _with_address(finding: Finding, text: str) -> Finding:
    says = finding.says
    if _ADDRESS.search(says):
        return finding
    address = _ADDRESS.search(text) if "host=" in text or "://" in text else None
    if address is None:
        return finding
    place = (
        f"{address[1]}:{address[2]}" if address[1] else next(group for group in address.groups()[2:] if group)
    )
    place = place.rpartition("@")[2]
    if place in says or place.partition(":")[0].endswith(_SOURCE_FILES) or "sqlalche.me" in place:
        return finding
    return replace(finding, says=f"{says.rstrip('.')} ({safe_message(place, 120)})")
