"""A loopback TCP proxy that can cut what flows through it: a real connection, really lost.

It stands between a client and a server and works on bytes, so a lost reply looks to the client as it does in life: the
request went out, the server acted on it, and the connection is gone.

    with CuttingProxy(server_port) as proxy:
        client = agenttx.Client(proxy.address)
        ...
        proxy.cut_replies(after_request_bytes=1)   # let the next request through, drop the answer, cut the connection
        client...
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

__all__ = ["CuttingProxy"]

_CHUNK = 65536


class CuttingProxy:
    """Forwards connections to 127.0.0.1:`server_port` until it is told to cut them."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._cuts_left = 0
        self._needle = b""
        self._refusing = False
        self._cut_done = threading.Event()
        self.connections = 0
        """Connections accepted so far."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="cutting-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where clients connect to, as HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def cut_replies(self, needle: bytes, times: int = 1) -> None:
        """Forward the next request that holds these bytes (a request_id, say), but none of what comes back.

        The connection is cut as soon as the server begins to answer, so that the server has certainly acted; `times`
        requests in all, one after the other. A header or a text of a protobuf message is found in it as it is; the
        search covers what one read brings, which is a whole request unless it is larger than 64 KiB.
        """
        with self._lock:
            self._needle, self._cuts_left = needle, times
            self._cut_done.clear()

    def wait_for_cuts(self, timeout: float = 10.0) -> bool:
        """Wait until the last of the replies asked for was cut."""
        return self._cut_done.wait(timeout)

    def cut_all(self) -> None:
        """Cut every connection now; new ones are accepted."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def refuse(self, refusing: bool = True) -> None:
        """Accept no connections from now on (they are closed at once), or accept them again."""
        self._refusing = refusing
        if refusing:
            self.cut_all()

    def close(self) -> None:
        """Cut everything and stop listening."""
        with contextlib.suppress(OSError):
            # Closing alone does not wake a thread that waits in accept.
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self._refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port), timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(self, client, server)
            with self._lock:
                self._links.add(link)
            link.start()

    def _take_cut(self, chunk: bytes) -> bool:
        """Whether the reply to the request in this chunk is to be cut."""
        with self._lock:
            if self._cuts_left and self._needle in chunk:
                self._cuts_left -= 1
                return True
            return False

    def _was_cut(self) -> None:
        with self._lock:
            if not self._cuts_left:
                self._cut_done.set()

    def _forget(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client connection and its connection to the server."""

    def __init__(self, proxy: CuttingProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._cutting = False

    def start(self) -> None:
        """Forward in both directions, in the background."""
        threading.Thread(target=self._requests, daemon=True).start()
        threading.Thread(target=self._replies, daemon=True).start()

    def close(self) -> None:
        """Cut the connection on both sides."""
        for one in (self._client, self._server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._proxy._forget(self)

    def _requests(self) -> None:
        try:
            while chunk := self._client.recv(_CHUNK):
                if self._proxy._take_cut(chunk):
                    # Before the server sees the request: its answer must find the reply closed.
                    self._cutting = True
                self._server.sendall(chunk)
        except OSError:
            pass
        finally:
            self.close()

    def _replies(self) -> None:
        try:
            while chunk := self._server.recv(_CHUNK):
                if self._cutting:
                    if not _is_answer(chunk):
                        continue
                    self._proxy._was_cut()
                    return
                self._client.sendall(chunk)
        except OSError:
            pass
        finally:
            self.close()


def _is_answer(chunk: bytes) -> bool:
    """Whether HTTP/2 bytes from the server hold the start of a response (a HEADERS frame), and not only housekeeping."""
    position = 0
    while position + 9 <= len(chunk):
        length = int.from_bytes(chunk[position : position + 3], "big")
        if chunk[position + 3] == 1:
            return True
        position += 9 + length
    return False
