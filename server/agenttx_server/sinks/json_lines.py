"""The default way out for committed effects: a file of JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import orjson

from agenttx_server.engine.records import EffectRecord, TransactionId
from agenttx_server.sinks.effect_fields import effect_fields

__all__ = ["JsonLinesSink"]


class _Line:
    def __init__(self, text: bytes) -> None:
        self.text = text
        self.error: OSError | None = None


class JsonLinesSink:
    """Appends one line an effect and is done when the line is on disk.

    Delivery is at least once: after a crash a line may be there twice, under the same
    ``effect_id`` and ``idempotency_key`` and with a greater ``delivery_attempt``. A line that a crash cut short gets its line end before
    the next is written, so that it spoils no other. The payload stands in the line as its own
    JSON, letter by letter. Effects that arrive while the disk is busy share one fsync.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: deque[_Line] = deque()
        # One thread: writes never overlap, also when a caller no longer waits for its own.
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="outbox")

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Append one effect; raises OSError if it can't be written."""
        line = _Line(_encode(transaction_id, effect))
        self._waiting.append(line)
        await asyncio.get_running_loop().run_in_executor(self._writer, self._write_waiting)
        if line.error is not None:
            raise line.error

    def close(self) -> None:
        """Wait for writes in progress and take no more."""
        self._writer.shutdown()

    def _write_waiting(self) -> None:
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not lines:
            return  # An earlier call took this one's line along.
        try:
            _append(self._path, b"".join(line.text for line in lines))
        except OSError as error:
            for line in lines:
                line.error = error


def _encode(transaction_id: TransactionId, effect: EffectRecord) -> bytes:
    fields = effect_fields(transaction_id, effect)
    fields["delivered_at"] = datetime.now(UTC).isoformat(timespec="milliseconds")
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def _append(path: Path, text: bytes) -> None:
    descriptor = _open(path)
    try:
        # Several servers may share the file: what is seen of its end must still be so when it is written.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            text = b"\n" + text
        try:
            unwritten = memoryview(text)
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
            os.fsync(descriptor)
        except OSError:
            # Half a line is worse than none: the effect stays undelivered and comes again whole.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o600)
        _sync_directory(path.parent)
        return descriptor


def _sync_directory(directory: Path) -> None:
    # Without this a crash may lose the new file's name, and with it every line.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
