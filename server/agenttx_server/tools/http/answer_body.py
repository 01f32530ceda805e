"""An answer as a step's output: its body as JSON, text or base64, without what is secret in it."""

from __future__ import annotations

import base64
from email.message import Message
from typing import Any, Final

from agenttx_server.engine.json_values import ValueRefused, parse
from agenttx_server.http_secrets import Secrets
from agenttx_server.tools.http.answers import Answer

__all__ = ["output_of", "text_of"]

# Cookies are credentials of a session that no later request of ours takes part in.
_LEFT_OUT: Final = frozenset({"set-cookie", "set-cookie2"})
_CHARSETS: Final = {
    "us-ascii": "ascii",
    "iso-8859-1": "latin-1",
    "latin1": "latin-1",
    "windows-1252": "cp1252",
    "utf-16": "utf-16",
}
_TEXTUAL: Final = ("text/", "application/xml", "application/x-www-form-urlencoded", "application/javascript")


def output_of(answer: Answer, secrets: Secrets) -> dict[str, Any]:
    """Return what the step's output is."""
    headers: dict[str, str] = {}
    for name, value in answer.headers:
        if name not in _LEFT_OUT:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    output: dict[str, Any] = {"status": answer.status, "url": answer.target.url, "headers": headers}
    if answer.cut is not None:
        output |= {"body": None, "body_omitted": answer.cut.message}
    elif not answer.body:
        output["body"] = None
    elif _is_text(answer):
        output["body"] = _parsed(answer)
    else:
        output |= {"body": None, "body_base64": base64.b64encode(secrets.mask_bytes(answer.body)).decode()}
    masked: dict[str, Any] = secrets.mask_json(output)
    return masked


def text_of(answer: Answer) -> str:
    """Return a body as text, whatever it is."""
    charset = _CHARSETS.get(_content_type(answer).get_content_charset("utf-8"), "utf-8")
    return answer.body.decode(charset, "replace")


def _parsed(answer: Answer) -> Any:
    text = text_of(answer)
    kind = _content_type(answer).get_content_type()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return parse(text)
        except ValueRefused:  # no JSON after all, or numbers that we can't carry exactly: as it was written
            pass
    return text


def _is_text(answer: Answer) -> bool:
    kind = _content_type(answer).get_content_type()
    if kind.startswith(_TEXTUAL) or kind.endswith(("+json", "+xml", "/json")):
        return True
    try:
        answer.body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return b"\0" not in answer.body


def _content_type(answer: Answer) -> Message:
    message = Message()
    message["Content-Type"] = answer.header("content-type").partition(",")[0] or "application/octet-stream"
    return message
