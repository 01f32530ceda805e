"""A small booking service over HTTP, with what the real ones get wrong: a real process's answers, on cue.

    with booking_service(honours_keys=True) as service:
        ...                          # POST service.url + "/bookings"
        service.bookings             # what is booked

    POST   /bookings            201 with {"id", …} and a Location; under a key it knows, the first answer again
    DELETE /bookings/ID         204; 404 for what is not booked
    POST   /charges             201, and stays
    PUT    /labels/NAME         200
    GET    /bookings            200
    anything in ``service.next``, a list of functions of the request, goes first

A function in ``next`` returns (status, headers, body) to be answered instead, or None to go on as usual; it may end
the connection by raising ConnectionError, before or (``after=True`` in ``lose_answer``) after the effect.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["BookingService", "Seen", "booking_service"]


@dataclass(frozen=True)
class Seen:
    """A request as it came in; names of headers in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Reply = tuple[int, dict[str, str], bytes]


@dataclass
class BookingService:
    """What the service knows, and what it was asked."""

    port: int = 0
    honours_keys: bool = False
    bookings: dict[str, Any] = field(default_factory=dict)
    charges: list[Any] = field(default_factory=list)
    labels: dict[str, Any] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    next: list[Callable[[Seen], Reply | None]] = field(default_factory=list)
    after: list[Callable[[Seen], None]] = field(default_factory=list)
    answered: dict[str, Reply] = field(default_factory=dict)
    booked: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_answer(self, times: int = 1) -> None:
        """Have the next effects happen and their answers be lost."""
        self.after += [_hang_up] * times

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        """Have the next request be answered so, and nothing happen."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        text = b"" if body is None else json.dumps(body).encode()
        self.next.append(lambda _: (status, {"Content-Type": "application/json", **named}, text))

    def handle(self, seen: Seen) -> Reply:
        with self.lock:
            self.requests.append(seen)
            if self.next:
                reply = self.next.pop(0)(seen)
                if reply is not None:
                    return reply
            key = seen.headers.get("idempotency-key", "")
            if self.honours_keys and key in self.answered:
                return self.answered[key]
            reply = self._act(seen)
            self.answered[key] = reply
            after = self.after.pop(0) if self.after and seen.method != "GET" else None
        if after is not None:
            after(seen)
        return reply

    def _act(self, seen: Seen) -> Reply:
        kind, _, name = seen.path.partition("?")[0].lstrip("/").partition("/")
        match seen.method, kind:
            case "POST", "bookings":
                wanted = json.loads(seen.body)
                if not isinstance(wanted, dict) or "room" not in wanted:
                    return _json(422, {"errors": [{"field": "room", "message": "is required"}]})
                self.booked += 1
                booking = {"id": f"b-{self.booked}", **wanted}
                self.bookings[booking["id"]] = booking
                return _json(201, booking, Location=f"/bookings/{booking['id']}")
            case "DELETE", "bookings":
                if self.bookings.pop(name, None) is None:
                    return _json(404, {"detail": "Not found."})
                return 204, {}, b""
            case "POST", "charges":
                self.charges.append(json.loads(seen.body))
                return _json(201, {"id": f"c-{len(self.charges)}"})
            case "PUT", "labels":
                self.labels[name] = json.loads(seen.body)
                return _json(200, self.labels[name])
            case "GET", "bookings":
                return _json(200, list(self.bookings.values()))
            case "GET" | "POST", "echo":
                return _json(200, {"path": seen.path, "headers": seen.headers, "body": seen.body.decode()})
        return _json(404, {"detail": "Not found."})


def _hang_up(_: Seen) -> None:
    raise ConnectionError


def _json(status: int, value: Any, **headers: str) -> Reply:
    return status, {"Content-Type": "application/json", **headers}, json.dumps(value).encode()


@contextmanager
def booking_service(*, honours_keys: bool = False) -> Iterator[BookingService]:
    """Serve on a free port of this machine, on threads."""
    service = BookingService(honours_keys=honours_keys)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                status, extra, answer = service.handle(Seen(self.command, self.path, headers, body))
            except ConnectionError:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in extra.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
