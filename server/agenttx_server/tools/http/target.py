"""A URL taken apart once, strictly: what was checked is what is connected to and what is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urljoin

from agenttx_server.http_hosts import DEFAULT_PORTS, canonical_host

__all__ = ["Target", "origin_text"]

MAX_URL_CHARACTERS = 8192

_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#\\]*)(?P<target>[^#]*)(?P<fragment>#.*)?",
    re.DOTALL,
)
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{1,5}))?")
# What may stand in a path and query as it is (RFC 3986), the percent sign of what is encoded already included.
_SAFE = "/?:@!$&'()*+,;=-._~%"
_BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: ``host`` in its one spelling, ``path`` with the query, percent-encoded."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read an absolute URL.

        Raises:
            ValueError: one line that never holds the URL, in which secrets may stand.
        """
        if len(url) > MAX_URL_CHARACTERS:
            raise ValueError(f"the URL is longer than {MAX_URL_CHARACTERS} characters")
        if any(ord(character) < 0x20 or ord(character) == 0x7F for character in url):
            raise ValueError("the URL holds a control character")
        match = _URL.fullmatch(url)
        if match is None:
            raise ValueError("the URL is not absolute; write it as https://host/path")
        scheme = match["scheme"].lower()
        if scheme not in DEFAULT_PORTS:
            raise ValueError(f"the URL's scheme '{scheme[:16]}' is neither https nor http")
        host, port = _authority(match["authority"], scheme)
        rest = match["target"]
        if "\\" in rest:
            raise ValueError("the URL holds a backslash; write it as %5C")
        try:
            path = _BAD_PERCENT.sub("%25", quote(rest, safe=_SAFE))
        except UnicodeEncodeError:
            raise ValueError("the URL holds a lone surrogate") from None
        return cls(scheme, host, port, path if path.startswith("/") else "/" + path)

    def joined(self, location: str) -> Target:
        """Return where a Location header of an answer from here leads. Raises ValueError."""
        location = "".join(character if character.isascii() else quote(character) for character in location)
        return Target.parse(urljoin(self.url, location.strip()))

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port."""
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL; it may hold secrets."""
        return f"{self.scheme}://{self.authority}{self.path}"


def origin_text(target: Target) -> str:
    """Return a target as errors name it: without path and query, where secrets may stand."""
    return f"{target.scheme}://{target.authority}"


def _authority(authority: str, scheme: str) -> tuple[str, int]:
    if "@" in authority:
        raise ValueError("the URL holds a user; send credentials in a header, as ${secret.NAME}")
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise ValueError("the URL's host and port can't be read")
    port = int(match["port"]) if match["port"] else DEFAULT_PORTS[scheme]
    if not 1 <= port <= 65_535:
        raise ValueError("the URL's port is not 1 to 65535")
    return canonical_host(match["host"]), port
