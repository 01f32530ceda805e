"""Secrets that the server puts into HTTP requests, by name, and the hosts that may receive each.

    [STRIPE_KEY]
    env = "STRIPE_KEY"                 # or value = "…", or file = "/run/secrets/stripe"
    hosts = ["api.stripe.com"]

A file that holds values itself is its owner's alone (mode 600).

Agents write ``${secret.STRIPE_KEY}``; the value is put in as the request is sent, and stands in no argument, no
row of the journal, no output and no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agenttx_server.engine.json_values import canonical
from agenttx_server.engine.operator_files import Table
from agenttx_server.http_hosts import HostPattern
from agenttx_server.http_secret_forms import forms_of
from agenttx_server.secret_values import SecretRefused, read_secrets

__all__ = ["MASK", "Secret", "SecretRefused", "Secrets", "load_secrets"]

MASK = "***"


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
    """Read a TOML file of secrets. Raises FileRefused, which never holds a value."""
    return Secrets(read_secrets(path, ("hosts",), _secret))


def _secret(name: str, value: str, table: Table) -> Secret:
    return Secret(name, value, tuple(HostPattern.parse(host) for host in table.texts("hosts")))
