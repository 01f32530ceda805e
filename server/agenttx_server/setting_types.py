"""Kinds of settings' values: what a flag's or a variable's text becomes, and what is refused.

Errors are ValueError; they never hold a value that may be secret.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator
from pydantic_settings import NoDecode

from agenttx_server import webhook_targets
from agenttx_server.http_hosts import HostPattern, parse_networks
from agenttx_server.listen_address import ListenAddress

__all__ = [
    "AbsolutePath",
    "Address",
    "DatabaseUrl",
    "Hosts",
    "Lines",
    "MetricsAddress",
    "Networks",
    "OctalMode",
    "OtlpAddress",
    "Texts",
    "UrlsByChannel",
    "ValuesByChannel",
]


def _absolute(value: Path) -> Path:
    return value.expanduser().absolute()


def _address(value: str) -> str:
    return str(ListenAddress.parse(value))


def _metrics_address(value: str) -> str:
    if not value:
        return value
    address = ListenAddress.parse(value)
    if address.socket_path is not None:
        raise ValueError("is no HOST:PORT; Prometheus reads from no Unix socket")
    return str(address)


def _otlp_address(value: str) -> str:
    if value and not re.fullmatch(r"https?://[^/@\s]+(/[^\s@]*)?", value):
        raise ValueError(
            "is no address such as http://127.0.0.1:4317; credentials go into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value


def _octal(value: object) -> object:
    if isinstance(value, str):
        digits = value.removeprefix("0o")
        if not digits or set(digits) - set("01234567") or int(digits, 8) > 0o777:
            raise ValueError(f"{value!r} is no octal mode such as 660")
        return int(digits, 8)
    return value


def _database_url(value: str) -> str:
    if not value.partition(":")[2].startswith("//"):
        raise ValueError("is no database URL such as sqlite:////var/lib/agenttx/agenttx.db")
    return value


def _split_at_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def _split_at_lines(value: object) -> object:
    if isinstance(value, str):
        return tuple(line.strip() for line in value.splitlines() if line.strip())
    return value


def _hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        HostPattern.parse(text)
    return value


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    parse_networks(value)
    return value


def _urls(value: tuple[str, ...]) -> tuple[str, ...]:
    webhook_targets.by_channel(value, "URL")
    return value


def _values(value: tuple[str, ...]) -> tuple[str, ...]:
    webhook_targets.by_channel(value, "VALUE")
    return value


Address = Annotated[str, AfterValidator(_address)]
MetricsAddress = Annotated[str, AfterValidator(_metrics_address)]
OtlpAddress = Annotated[str, AfterValidator(_otlp_address)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
OctalMode = Annotated[int, BeforeValidator(_octal)]

AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
"""``~`` is a home directory; what is relative is so to the directory of the start."""

Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_at_commas)]
"""Several texts; as a variable separated by commas."""

Lines = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split_at_lines)]
"""Several texts that may hold commas, as commands do; as a variable one a line."""

Hosts = Annotated[Texts, AfterValidator(_hosts)]
Networks = Annotated[Texts, AfterValidator(_networks)]
UrlsByChannel = Annotated[Texts, AfterValidator(_urls)]
ValuesByChannel = Annotated[Texts, AfterValidator(_values)]
