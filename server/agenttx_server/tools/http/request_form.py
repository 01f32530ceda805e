"""From a request as an agent writes it, templates in it, to one that can be sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from agenttx_server.engine.json_values import ValueRefused, canonical
from agenttx_server.engine.records import HintCategory
from agenttx_server.http_secrets import SecretRefused, Secrets
from agenttx_server.tools.http.answers import NotDone
from agenttx_server.tools.http.content_encoding import ACCEPTED
from agenttx_server.tools.http.outgoing import SAFE_METHODS, Outgoing
from agenttx_server.tools.http.target import Target
from agenttx_server.tools.http.templates import BadTemplate, MissingValue, fill, names_in

__all__ = ["LOCATIONS", "RequestForm", "made_ready"]

# What the answer says of where something is: kept as an absolute URL, templates in place of secrets in it.
# (Such a URL is percent-encoded, so nothing else in it can be a template.)
LOCATIONS: Final = frozenset({"response.headers.location", "response.headers.content-location"})

MAX_HEADER_CHARACTERS = 8192

_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")
# How a message is framed, and which connection it takes, is the server's; so is the key.
_OURS: Final = frozenset(
    "accept-encoding connection content-length expect host idempotency-key keep-alive proxy-authorization "
    "proxy-connection te trailer transfer-encoding upgrade".split()
)
_KEY_SAFE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


@dataclass(frozen=True, slots=True)
class RequestForm:
    """A request with templates. ``body`` is sent as it is where it is a text, else as JSON; None is no body."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Any = None

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> RequestForm:
        """Read one from arguments that were validated."""
        return cls(fields["method"], fields["url"], fields.get("headers") or {}, fields.get("body"))

    def names(self) -> set[str]:
        """Return what its templates name. Raises BadTemplate."""
        return set(names_in([self.url, dict(self.headers), self.body]))


def made_ready(
    form: RequestForm, values: Mapping[str, Any], secrets: Secrets, idempotency_key: str
) -> Outgoing:
    """Fill in a request's templates and check it.

    Args:
        form: the request.
        values: what ``${response.…}`` and ``${arguments.…}`` stand for, by the template's name.
        secrets: what ``${secret.…}`` stands for, where it may be sent to.
        idempotency_key: the key that is sent, unless the method is a safe one.

    Raises:
        NotDone: it can't be sent; the message holds no secret.
    """
    filling = _Filling(values, secrets, idempotency_key)
    try:
        target = filling.target(form.url)
        headers, secret_headers = filling.headers(form)
        body, body_has_secret = filling.body(form.body)
    except BadTemplate as error:
        raise NotDone(HintCategory.INVALID_VALUE, f"{error}. Correct it.") from None
    except MissingValue as error:
        raise NotDone(
            HintCategory.MISSING_KEY,
            f"there is nothing for ${{{error.name}}}. Refer to something that is there.",
            (error.key,),
        ) from None
    except SecretRefused as error:
        raise NotDone(
            HintCategory.PERMISSION_DENIED, f"{error}. Use one that is meant for this host."
        ) from None
    if form.method not in SAFE_METHODS:
        headers.append(("Idempotency-Key", quote(idempotency_key, safe=_KEY_SAFE)))
    given = {name.lower() for name, _ in headers}
    if body is not None and "content-type" not in given:
        text = isinstance(form.body, str)
        headers.append(("Content-Type", "text/plain; charset=utf-8" if text else "application/json"))
    for name, value in (("Accept", "*/*"), ("User-Agent", "agenttx"), ("Accept-Encoding", ACCEPTED)):
        if name.lower() not in given:
            headers.append((name, value))
    return Outgoing(form.method, target, tuple(headers), body, secret_headers, body_has_secret)


class _Filling:
    """Fills one request; knows where it goes once the URL is read, and lets no secret go elsewhere."""

    def __init__(self, values: Mapping[str, Any], secrets: Secrets, idempotency_key: str) -> None:
        self._values = values
        self._secrets = secrets
        self._key = idempotency_key
        self._origin: tuple[str, str, int] | None = None
        self._used_secret = False

    def target(self, url: str) -> Target:
        """Return the URL, its host read before any secret is put in."""
        try:
            without = fill(url, self._placeholder, _in_url)
            bare = Target.parse(without)
            self._origin = bare.origin
            filled = fill(url, self._lookup, _in_url)
            target = Target.parse(filled)
            if target.origin != bare.origin:
                raise ValueError("a secret can't be part of the URL's host")
        except (BadTemplate, MissingValue, SecretRefused):
            raise
        except ValueError as error:
            raise NotDone(HintCategory.INVALID_VALUE, f"{error}. Correct the URL.", ("url",)) from None
        return target

    def headers(self, form: RequestForm) -> tuple[list[tuple[str, str]], frozenset[str]]:
        """Return the headers, and names of those that hold a secret."""
        filled: list[tuple[str, str]] = []
        secret: set[str] = set()
        for name, template in form.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise _bad_header(name, "is no header's name")
            if name.lower() in _OURS:
                raise _bad_header(name, "is set by the server; leave it out")
            self._used_secret = False
            value = fill(template, self._lookup, lambda text, _: text)
            if not _HEADER_VALUE.fullmatch(value) or len(value) > MAX_HEADER_CHARACTERS:
                raise _bad_header(name, "has a value that is not one line of ASCII, or too long")
            filled.append((name, value.strip()))
            if self._used_secret:
                secret.add(name.lower())
        return filled, frozenset(secret)

    def body(self, body: Any) -> tuple[bytes | None, bool]:
        """Return the body's bytes, and whether it holds a secret."""
        if body is None:
            return None, False
        self._used_secret = False
        if isinstance(body, str):
            text = fill(body, self._lookup, lambda text, _: text)
        else:
            try:
                text = canonical(fill(body, self._lookup))
            except ValueRefused as error:
                raise NotDone(
                    HintCategory.INVALID_VALUE, f"the body is no JSON at {error}. Correct it.", ("body",)
                ) from None
        try:
            return text.encode("utf-8"), self._used_secret
        except UnicodeEncodeError:
            raise NotDone(
                HintCategory.INVALID_VALUE, "the body holds a lone surrogate. Leave it out.", ("body",)
            ) from None

    def _placeholder(self, name: str) -> Any:
        if name.startswith("secret."):
            return "secret"
        return self._value(name, self._placeholder) if name in LOCATIONS else self._lookup(name)

    def _value(self, name: str, lookup: Callable[[str], Any]) -> Any:
        if name not in self._values:
            raise MissingValue(name)
        value = self._values[name]
        return fill(value, lookup, lambda text, _: quote(text, safe="")) if name in LOCATIONS else value

    def _lookup(self, name: str) -> Any:
        if name == "idempotency_key":
            return self._key
        if not name.startswith("secret."):
            return self._value(name, self._lookup)
        if self._origin is None:
            raise AssertionError("the URL is read first")
        self._used_secret = True
        return self._secrets.value_for(name.removeprefix("secret."), *self._origin)


def _in_url(text: str, position: int) -> str:
    # At the beginning it is a URL, such as a Location, else a part of one.
    return text if position == 0 else quote(text, safe="", errors="strict")


def _bad_header(name: str, why: str) -> NotDone:
    return NotDone(HintCategory.INVALID_VALUE, f"the header '{name[:64]}' {why}. Correct it.", ("headers",))
