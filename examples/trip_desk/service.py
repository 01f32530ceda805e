"""A travel company's HTTP service: bookings, refunds and a ledger. It knows nothing of transactions.

    python -m trip_desk.service      # prints its address

- ``PUT /bookings/KEY`` with ``{"kind", "traveller_id", "cents"}`` charges and books; the same key again does nothing more.
- ``DELETE /bookings/KEY`` cancels and refunds; again, or for a key never seen, it does nothing.
- ``PUT /payments/KEY`` with ``{"traveller_id", "cents"}`` settles what was charged.
- ``GET /ledger`` lists the entries; ``GET /travellers?name=`` the travellers.
- ``POST /cue`` with ``{"method", "kind", "status"}`` makes the next such request fail.
"""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TRAVELLERS = [
    {"traveller_id": "trv_2", "name": "J. Meyer", "city": "Graz", "has_card": False},
    {"traveller_id": "trv_1", "name": "J. Meyer", "city": "Lisbon", "has_card": True},
]


class Desk:
    """What the service keeps."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.bookings: dict[str, dict[str, Any]] = {}
        self.ledger: list[dict[str, Any]] = []
        self.cues: list[dict[str, Any]] = []

    def book(self, key: str, wanted: dict[str, Any]) -> tuple[int, Any]:
        if key not in self.bookings:
            self.bookings[key] = wanted
            self._enter(key, f"{wanted['kind']} booked", wanted["cents"])
        return 200, {"booking": key, **wanted}

    def cancel(self, key: str) -> tuple[int, Any]:
        if booking := self.bookings.pop(key, None):
            self._enter(key, f"{booking['kind']} refunded", -booking["cents"])
        return 200, {}

    def pay(self, key: str, wanted: dict[str, Any]) -> tuple[int, Any]:
        traveller = next(t for t in TRAVELLERS if t["traveller_id"] == wanted["traveller_id"])
        if not traveller["has_card"]:
            problem = f"traveller {traveller['traveller_id']} has no card on file"
            return 402, {"error": problem, "field": "traveller_id"}
        if all(entry["key"] != key for entry in self.ledger):
            self._enter(key, "paid", -wanted["cents"])
        return 200, {"receipt": key, "cents": wanted["cents"]}

    def take_cue(self, method: str, kind: str) -> int | None:
        for cue in self.cues:
            if (cue["method"], cue["kind"]) == (method, kind):
                self.cues.remove(cue)
                return int(cue["status"])
        return None

    def _enter(self, key: str, what: str, cents: int) -> None:
        self.ledger.append({"key": key, "what": what, "cents": cents})


class Handler(BaseHTTPRequestHandler):
    """One request."""

    desk: Desk

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/ledger":
            self._answer(200, self.desk.ledger)
        else:
            name = parse_qs(url.query)["name"][0]
            self._answer(200, [t for t in TRAVELLERS if t["name"] == name])

    def do_PUT(self) -> None:
        collection, key = self.path.strip("/").split("/")
        wanted = self._body()
        with self.desk.lock:
            if status := self.desk.take_cue("PUT", wanted.get("kind", collection)):
                self._answer(status, {"error": "try again later"})
            elif collection == "bookings":
                self._answer(*self.desk.book(key, wanted))
            else:
                self._answer(*self.desk.pay(key, wanted))

    def do_DELETE(self) -> None:
        key = self.path.rpartition("/")[2]
        with self.desk.lock:
            kind = self.desk.bookings.get(key, {}).get("kind", "")
            if status := self.desk.take_cue("DELETE", kind):
                self._answer(status, {"error": "try again later"})
            else:
                self._answer(*self.desk.cancel(key))

    def do_POST(self) -> None:
        self.desk.cues.append(self._body())
        self._answer(200, {})

    def log_message(self, *args: Any) -> None:
        """Say nothing: stdout is for the address."""

    def _body(self) -> dict[str, Any]:
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, status: int, body: Any) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def main() -> None:
    """Serve on a free port of the loopback interface until stdin is closed: with whoever started it."""
    Handler.desk = Desk()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
