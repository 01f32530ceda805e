"""PipelineService: pipelines and their runs."""

from __future__ import annotations

from dataclasses import dataclass

from agenttx_server.pipelines.lineage_reading import LineageReading

__all__ = ["PipelineRunning"]


@dataclass(frozen=True, slots=True)
class PipelineRunning:
    """What is served of pipelines and their records."""

    reading: LineageReading
