"""Secrets that the server puts into HTTP requests, by name, and the hosts that may receive each.

    [STRIPE_KEY]
    env = "STRIPE_KEY"                 # or value = "…", or file = "/run/secrets/stripe"
    hosts = ["api.stripe.com"]

Agents write ``${secret.STRIPE_KEY}``; the value is put in as the request is sent, and stands in no argument, no
row of the journal, no output and no error.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agenttx_server.engine.json_values import canonical
from agenttx_server.http_hosts import HostPattern
from agenttx_server.http_secret_forms import forms_of

__all__ = [
    "MASK",
    "Secret",
    "SecretRefused",
    "Secrets",
    "check_value",
    "load_secrets",
    "name_of",
    "value_of",
]

MASK = "***"
# Shorter ones would be found, and masked, in texts that have nothing to do with them.
LEAST_CHARACTERS = 8
MOST_CHARACTERS = 16 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SOURCES = ("value", "env", "file")


class SecretRefused(Exception):
    """A secret that there is not, or that may not go where it was to go; the message never holds a value."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value and where it may go."""

    name: str
    value: str = field(repr=False)
    hosts: tuple[HostPattern, ...] = ()


class Secrets:
    """All secrets of a server."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._by_name = {secret.name: secret for secret in secrets}
        # The longest first: one may be within another one.
        ordered = sorted(self._by_name.values(), key=lambda secret: (-len(secret.value), secret.name))
        self._forms = [(secret, form) for secret in ordered for form in forms_of(secret.value)]

    def value_for(self, name: str, scheme: str, host: str, port: int) -> str:
        """Return a secret's value for a request there.

        Raises:
            SecretRefused: there is no such secret, or it is not for that host.
        """
        secret = self._by_name.get(name)
        if secret is None:
            raise SecretRefused(f"there is no secret '{name[:64]}' in the server's settings")
        if not any(pattern.matches(scheme, host, port) for pattern in secret.hosts):
            raise SecretRefused(f"the secret '{name}' may not be sent to {scheme}://{host}:{port}")
        return secret.value

    def leaks(self, text: str, scheme: str, host: str, port: int) -> bool:
        """Whether a text holds a secret, in any of its forms, that may not go there."""
        return any(
            form.found_in(text)
            for secret, form in self._forms
            if not any(pattern.matches(scheme, host, port) for pattern in secret.hosts)
        )

    def named(self, text: str, form_of_name: str = "${{secret.{}}}") -> str | None:
        """Return a text with ``${secret.NAME}``, or another form, in place of each value; None where that can't be done."""
        for secret, form in self._forms:
            if form.readable:
                text = form.replaced(text, form_of_name.format(secret.name))
        return text if self.mask(text) == text else None

    def mask(self, text: str) -> str:
        """Return a text without any secret, however it is written (http_secret_forms.py)."""
        for _, form in self._forms:
            text = form.replaced(text, MASK)
        return text

    def mask_bytes(self, body: bytes) -> bytes:
        """Return bytes without any secret."""
        return self.mask(body.decode("latin-1")).encode("latin-1") if self._forms else body

    def mask_json(self, value: Any) -> Any:
        """Return a JSON value that is masked: texts, names of fields, and numbers that are a secret of digits."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, list):
            return [self.mask_json(item) for item in value]
        if isinstance(value, dict):
            return {self.mask(name): self.mask_json(item) for name, item in value.items()}
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = canonical(value)
            masked = self.mask(text)
            return value if masked == text else masked
        return value


def load_secrets(path: Path) -> Secrets:
    """Read a TOML file of secrets.

    Raises:
        ValueError: one line, which names the file and the secret and never holds a value.
    """
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError:  # its text may quote the line, and with it a value
        raise ValueError(f"{path}: is no TOML") from None
    return Secrets(_secret(path, name, table) for name, table in tables.items())


def _secret(path: Path, name: str, table: object) -> Secret:
    def refused(why: str) -> ValueError:
        return ValueError(f"{path}: secret {name[:64]!r}: {why}")

    if not _NAME.fullmatch(name) or not isinstance(table, Mapping):
        raise refused('is no table with a name of A-Z a-z 0-9 _ -, such as [API_KEY] with hosts = ["…"]')
    unknown = sorted(set(table) - {*_SOURCES, "hosts"})
    if unknown:
        raise refused(f"has the unknown field {unknown[0][:64]!r}; there are value, env, file and hosts")
    given = [source for source in _SOURCES if source in table]
    if len(given) != 1 or not isinstance(table[given[0]], str):
        raise refused("needs one of value, env and file, a text")
    hosts = table.get("hosts")
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise refused("needs hosts, a list of those that may receive it")
    try:
        patterns = tuple(HostPattern.parse(host) for host in hosts)
    except ValueError as error:
        raise refused(str(error)) from None
    value = value_of(path, given[0], table[given[0]], refused)
    check_value(value, refused)
    return Secret(name, value, patterns)


def name_of(text: str) -> bool:
    """Whether a text is fit to be a secret's name."""
    return _NAME.fullmatch(text) is not None


def check_value(value: str, refused: Callable[[str], ValueError]) -> None:
    """Raise what ``refused`` makes of a value that could not be found again in texts."""
    if not LEAST_CHARACTERS <= len(value) <= MOST_CHARACTERS or not (value.isascii() and value.isprintable()):
        raise refused(f"is not {LEAST_CHARACTERS} to {MOST_CHARACTERS} printable ASCII characters")


def value_of(path: Path, source: str, text: str, refused: Callable[[str], ValueError]) -> str:
    """Return a secret's value: the text, a variable of this name, or what a file beside ``path`` holds."""
    if source == "value":
        return text
    if source == "env":
        found = os.environ.get(text)
        if not found:
            raise refused(f"the variable {text[:64]!r} is not set")
        return found
    file = path.parent / text
    try:
        return file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise refused(f"{file} can't be read ({type(error).__name__})") from None
