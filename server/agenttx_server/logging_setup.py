"""The log: structured lines on stderr, JSON for machines or columns for people.

Whatever still speaks to :mod:`logging` (asyncio, alembic, grpc) comes out in the same form.
Facts of the call being served are added by a callable that the api layer hands in, so that a
line written anywhere below says which call it belongs to.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import stat
import sys
import threading
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO, cast

import orjson
import structlog

__all__ = ["configure_logging", "plain"]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
LONGEST_VALUE = 256
READER_PATIENCE_SECONDS = 1.0
# They have nothing to say at info that a reader of this log asked for.
QUIET_LOGGERS = ("alembic", "asyncio", "grpc", "httpcore2", "httpx2", "sqlalchemy")

CallFacts = Callable[[], Mapping[str, object]]


def plain(text: str) -> str:
    """Return a caller's text fit for a log line: bounded, and nothing in it that a terminal obeys."""
    if len(text) > LONGEST_VALUE:
        text = text[: LONGEST_VALUE - 1] + "…"
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def configure_logging(
    form: str, level: str, call_facts: CallFacts = dict, stream: TextIO | None = None
) -> None:
    """Set the process's logging up.

    Args:
        form: ``json``, ``console``, or ``auto``, which is console on a terminal.
        level: ``debug``, ``info``, ``warning`` or ``error``.
        call_facts: returns what to add to a line about the call being served.
        stream: where lines go; stderr if None.
    """
    out = stream or sys.stderr
    lines = _LossyStream(out)
    # Tracebacks in their plain form only: the rich ones show local variables, and with them arguments and secrets.
    as_console = form == "console" or (form == "auto" and out.isatty())
    threshold = LEVELS[level]

    def add_call_facts(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if "method" not in line:  # The access log's line has them already.
            for name, value in call_facts().items():
                line.setdefault(name, value)
        return line

    shared: list[Any] = [
        add_call_facts,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if as_console:
        ending: list[Any] = [
            structlog.dev.ConsoleRenderer(
                colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    else:
        ending = [structlog.processors.format_exc_info, _render_json]
    structlog.configure(
        processors=[*shared, *ending],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", lines)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(cast("TextIO", lines))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ending],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(threshold)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


class _LossyStream:
    """A stream whose writes lose their line where it can't be written: they neither raise nor wait for ever.

    Whoever read the log may be gone or have stopped reading, or the disk it goes to be full: no
    reason to fail or to hold up the calls that the lines are about. A reader that is merely slow is
    waited for; one that did not read for a while is waited for no more until it reads again.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._descriptor = _descriptor_of_a_reader(stream)
        self._patience_seconds = READER_PATIENCE_SECONDS
        self._is_line_cut = False

    def write(self, text: str) -> int:
        # ValueError: the stream was closed.
        with self._lock, contextlib.suppress(OSError, ValueError):
            if self._descriptor is None:
                self._stream.write(text)
            else:
                self._send(self._descriptor, text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def _send(self, descriptor: int, text: str) -> None:
        ending = "\n" if self._is_line_cut else ""
        rest = memoryview((ending + text).encode("utf-8", "backslashreplace"))
        is_begun = False
        while rest:
            if not self._has_room(descriptor):
                self._is_line_cut = self._is_line_cut or is_begun
                return
            # So much fits, without waiting, where poll says that something does.
            rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]
            is_begun = True
        self._is_line_cut = False

    def _has_room(self, descriptor: int) -> bool:
        room = select.poll()
        room.register(descriptor, select.POLLOUT)
        has_room = bool(room.poll(self._patience_seconds * 1000))
        self._patience_seconds = READER_PATIENCE_SECONDS if has_room else 0.0
        return has_room


def _descriptor_of_a_reader(stream: TextIO) -> int | None:
    """Return the descriptor of a pipe, socket or terminal, which may be full; None for anything else."""
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError):
        return None
    may_be_full = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode)
    return descriptor if may_be_full else None


def _render_json(_: Any, __: str, line: MutableMapping[str, Any]) -> str:
    try:
        return orjson.dumps(line, default=repr).decode()
    except TypeError:  # A lone surrogate or a huge integer: no reason to lose the line.
        return json.dumps(line, default=repr)
