"""What a commit writer counts of itself."""

from __future__ import annotations

from dataclasses import dataclass

from agenttx_server.histogram import HistogramReading

__all__ = ["BATCH_SECONDS", "BATCH_SETS", "StoreStatistics", "WriterStatistics"]

BATCH_SETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
BATCH_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """Since the start: the sets of each batch that was committed, and how long each took from its beginning until it was
    durable; sets whose outcome is that the database could not be reached or is unknown; and how many are queued now.
    """

    batch_sets: HistogramReading
    batch_seconds: HistogramReading
    sets_unavailable: int
    queued: int

    def __add__(self, other: WriterStatistics) -> WriterStatistics:
        return WriterStatistics(
            self.batch_sets + other.batch_sets,
            self.batch_seconds + other.batch_seconds,
            self.sets_unavailable + other.sets_unavailable,
            self.queued + other.queued,
        )


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """Writing, and how many reads wait for a thread."""

    writing: WriterStatistics
    reads_waiting: int
