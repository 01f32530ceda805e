"""Where a server listens."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["HIGHEST_PORT", "ListenAddress", "MetricsAddressRefused"]

HIGHEST_PORT = 65535
LONGEST_SOCKET_PATH_BYTES = 107  # sun_path of Linux, less the terminating zero


class MetricsAddressRefused(Exception):
    """Metrics can't be served at an address; in one line, why."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A host and port, or a Unix socket.

    ``port`` 0 lets the system choose. The ``host`` of an IPv6 address is without brackets.
    """

    host: str = ""
    port: int = 0
    socket_path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``. Raises ValueError saying what is wrong."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:").removeprefix("//")
            if not path:
                raise ValueError("unix: needs the path of a socket")
            absolute = Path(path).expanduser().absolute()
            if len(os.fsencode(absolute)) > LONGEST_SOCKET_PATH_BYTES:
                raise ValueError(f"the socket's path is longer than {LONGEST_SOCKET_PATH_BYTES} bytes")
            return cls(socket_path=absolute)
        host, separator, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"{text!r}: an IPv6 address needs brackets, as in [::1]:50051")
        if not separator or not host or not (port.isascii() and port.isdigit()):
            raise ValueError(f"{text!r} is neither HOST:PORT nor unix:PATH")
        if len(port) > 5 or int(port) > HIGHEST_PORT:
            raise ValueError(f"{text!r}: ports go from 0, which lets the system choose, to {HIGHEST_PORT}")
        return cls(host=host, port=int(port))

    @property
    def is_local(self) -> bool:
        """Whether nobody beyond this machine can connect: a Unix socket or a loopback address."""
        if self.socket_path is not None or self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # A name: where it leads is unknown here.

    def __str__(self) -> str:
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
