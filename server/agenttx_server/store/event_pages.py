"""Journals of graph runs as they are stored: events that are written together are one row, a *page*.

A boundary has eight events or more. As rows of their own they were half of what PostgreSQL does for a superstep, with three
entries in indexes each (docs/decisions/0034-rows-of-a-superstep.md). A page is a row of ``graph_events`` whose kind is empty:

- ``event_offset`` is that of its first event. Whoever writes at the same place begins there too, so the table's
  key refuses one of them, as it does with single events;
- ``sequence`` is that of its last event, so what is behind a sequence is found by it. The numbers below are the page's own: as many
  are left free on PostgreSQL as the largest page needs, on SQLite as many as it has;
- ``payload`` is a JSON array of ``[kind, payload]``, followed by time, namespace, superstep, node and task where they are not those of
  the event before. The other columns are the same for all its events.

An event alone is a row as it always was; databases of older releases have only such rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, SupportsInt

from agenttx_server.store.batch_connection import RowStatement
from agenttx_server.store.record_codec import canonical_json, parse_json

__all__ = ["MOST_EVENTS", "PagedEvents", "events_of", "packed"]

MOST_EVENTS: Final = 64
"""A page has no more: the steps in which PostgreSQL numbers rows (migrations/versions/*_event_pages.py)."""
# Nor is it larger, but for a single event: whoever wants one event reads its page.
_MOST_CHARACTERS = 16 * 1024

# A row is run, offset, kind, time, thread, root run, graph, namespace, superstep, node, task, payload; read, also the sequence.
_WIDTH = 12
_OF_PAGE = (0, 4, 5, 6)  # columns that are one value a page
_VARYING = (3, 7, 8, 9, 10)
_PAGE_KIND = ""


class PagedEvents:
    """The statement that inserts events (batch_connection.RowStatement): given one by one, written in pages.

    ``is_numbered``: rows have, as a further value, how many events of the statement there are up to their end.
    """

    def __init__(self, insertion: RowStatement, *, is_numbered: bool = False) -> None:
        self._insertion = insertion
        self._is_numbered = is_numbered

    def with_insertion(self, change: Callable[[RowStatement, int], RowStatement]) -> PagedEvents:
        """Return the same with another statement for the rows, made of this one's and of their width."""
        inserted = change(self._insertion, _WIDTH + self._is_numbered)
        return PagedEvents(inserted, is_numbered=self._is_numbered)

    def execute(self, connection: Any, values: Sequence[Any], expected: int | None = None) -> SupportsInt:
        """Insert; return the number of rows."""
        rows: list[Any] = []
        written = 0
        for count, page in packed(values):
            written += count
            rows += page
            if self._is_numbered:
                rows.append(written)
        return self._insertion.execute(connection, rows, expected)

    def query(self, connection: Any, values: Sequence[Any]) -> Any:
        """There is nothing to ask."""
        raise NotImplementedError


def packed(values: Sequence[Any]) -> Iterator[tuple[int, Sequence[Any]]]:
    """Return events, whose columns are given one behind the other, as rows, and how many are in each."""
    page: list[Sequence[Any]] = []
    size = 0
    for start in range(0, len(values), _WIDTH):
        event = values[start : start + _WIDTH]
        size += len(event[-1])
        if page and not (len(page) < MOST_EVENTS and size <= _MOST_CHARACTERS and _follows(page, event)):
            yield len(page), _row(page)
            page, size = [], len(event[-1])
        page.append(event)
    if page:
        yield len(page), _row(page)


def _follows(page: Sequence[Sequence[Any]], event: Sequence[Any]) -> bool:
    first = page[0]
    return event[1] == first[1] + len(page) and all(event[at] == first[at] for at in _OF_PAGE)


def _row(page: Sequence[Sequence[Any]]) -> Sequence[Any]:
    if len(page) == 1:
        return page[0]
    told: list[list[Any]] = []
    before: list[Any] | None = None
    for event in page:
        varying = [event[at] for at in _VARYING]
        told.append([event[2], event[-1]] if varying == before else [event[2], event[-1], *varying])
        before = varying
    run_id, offset, _, occurred_at, thread_id, root_run_id, graph, *_ = page[0]
    shared = (run_id, offset, _PAGE_KIND, occurred_at, thread_id, root_run_id, graph)
    return (*shared, "", 0, "", "", canonical_json(told))


def events_of(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Return the events in rows that were read, each as a row of its own."""
    for row in rows:
        if row[2] != _PAGE_KIND:
            yield row
            continue
        run_id, offset, _, _, thread_id, root_run_id, graph, *_, payload, last = row
        told = parse_json(payload)
        first = last - len(told) + 1
        varying: Sequence[Any] = ()
        for at, (kind, its_payload, *changed) in enumerate(told):
            varying = changed or varying
            occurred_at, *others = varying
            yield (
                run_id,
                offset + at,
                kind,
                occurred_at,
                thread_id,
                root_run_id,
                graph,
                *others,
                its_payload,
                first + at,
            )
