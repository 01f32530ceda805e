"""Hosts as requests name them and as the settings allow them: ``[SCHEME://]HOST[:PORT]``.

    api.example.com          https, port 443
    *.example.com            every name below example.com, not itself
    http://billing:8080      plain http has to be asked for
    https://10.0.0.7:*       any port
    *                        every host, by https on port 443

A host has one spelling here. Other spellings of addresses (``2130706433``, ``0x7f.1``, ``127.1``,
``0177.0.0.1``), trailing dots, scopes and names outside ASCII are refused rather than understood, so that
nothing that reads the name later can understand another host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["DEFAULT_PORTS", "HostPattern", "Network", "any_matches", "canonical_host", "parse_networks"]

DEFAULT_PORTS = {"https": 443, "http": 80}
MAX_NAME_CHARACTERS = 253

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*")
# What the C library, and browsers, read as an IPv4 address whatever stands before it.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PATTERN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[^\]]*\]|[^\[\]:/?#@\\\s]+)(?::(?P<port>[0-9]{1,5}|\*))?"
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def canonical_host(text: str) -> str:
    """Return a host in its one spelling: a lower-case name, or an address (IPv6 without brackets).

    Args:
        text: as in a URL, IPv6 in brackets.

    Raises:
        ValueError: one line; the host is none, or is not spelled in the one way.
    """
    if text.startswith("[") and text.endswith("]"):
        try:
            if "%" not in text:
                return str(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            pass
        raise ValueError("the host is no IPv6 address")
    if not text.isascii():
        raise ValueError("the host is not ASCII; write its xn-- form")
    name = text.lower()
    if name.endswith("."):
        raise ValueError("the host ends with a dot; leave it out")
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name):
        raise ValueError("the host is no host name")
    if _NUMERIC_LABEL.fullmatch(name.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ValueError("the host is an address; write it as four decimal numbers") from None
    return name


@dataclass(frozen=True, slots=True)
class HostPattern:
    """Which requests are meant; ``host`` is a host, ``*.`` and a name, or ``*``; ``port`` None is any."""

    scheme: str
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> HostPattern:
        """Read a setting.

        Raises:
            ValueError: one line.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is no host such as api.example.com, *.example.com or http://host:8080"
            )
        scheme = match["scheme"] or "https"
        host = match["host"].lower()
        try:
            if host.startswith("*."):
                host = "*." + canonical_host(host[2:])
            elif host != "*":
                host = canonical_host(host)
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None
        port: int | None = DEFAULT_PORTS[scheme]
        if match["port"] == "*":
            port = None
        elif match["port"]:
            port = int(match["port"])
            if not 1 <= port <= 65_535:
                raise ValueError(f"{text!r}: a port is 1 to 65535")
        return cls(scheme, host, port)

    def matches(self, scheme: str, host: str, port: int) -> bool:
        """Whether a request there is meant; ``host`` is in its one spelling."""
        if scheme != self.scheme or self.port not in (None, port):
            return False
        if self.host.startswith("*."):
            return host.endswith(self.host[1:])
        return self.host in ("*", host)


def any_matches(patterns: Iterable[HostPattern], scheme: str, host: str, port: int) -> bool:
    """Whether a request there is meant by one of the patterns."""
    return any(pattern.matches(scheme, host, port) for pattern in patterns)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read networks such as ``10.0.0.0/8``.

    Raises:
        ValueError: one line.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError:
            raise ValueError(f"{text!r} is no network such as 10.0.0.0/8") from None
    return tuple(networks)
