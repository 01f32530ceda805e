"""The service as a process of its own, and requests to it."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REQUEST_SECONDS = 10.0


class ServiceRefused(Exception):
    """The service said no; ``field`` is what it complains of, if it says so."""

    def __init__(self, status: int, error: str, field: str = "") -> None:
        super().__init__(f"HTTP {status}: {error}")
        self.status = status
        self.error = error
        self.field = field


@contextmanager
def running_service() -> Iterator[str]:
    """Start the service and yield its address; it ends with its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trip_desk.service"],
        cwd=Path(__file__).resolve().parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.wait(REQUEST_SECONDS)
        process.stdout.close()


def request(method: str, url: str, body: Any = None) -> Any:
    """Send JSON and return JSON. Raises ServiceRefused for an answer that isn't 2xx."""
    payload = None if body is None else json.dumps(body).encode()
    wanted = urllib.request.Request(url, payload, method=method)
    try:
        with urllib.request.urlopen(wanted, timeout=REQUEST_SECONDS) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        with refusal:
            told = json.load(refusal)
        raise ServiceRefused(refusal.code, told["error"], told.get("field", "")) from None
