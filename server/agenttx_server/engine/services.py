"""What the parts of the engine share: the ports, the limits and the settings in force."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agenttx_server.engine.limits import Limits
from agenttx_server.engine.ports import Clock, EffectSink, IdSource, ToolRunner, TransactionStore
from agenttx_server.engine.records import Hint

__all__ = ["EngineServices", "EngineSettings"]


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Durations in seconds, counts as integers; each is a setting.

    ``long_step_seconds``: a step that runs longer gets its EXECUTING row, so that others see it.
    ``stop_grace_seconds``: how long a cancelled tool may take to end before its undo starts.
    """

    step_timeout_seconds: float = 30.0
    long_step_seconds: float = 1.0
    step_retries: int = 0
    retry_base_seconds: float = 0.1
    stop_grace_seconds: float = 10.0
    idempotent_reruns: int = 3
    compensation_retries: int = 3
    compensation_timeout_seconds: float = 30.0
    compensation_backoff_seconds: float = 0.2
    dispatch_wait_seconds: float = 2.0
    cached_transactions: int = 10_000


@dataclass(frozen=True, slots=True)
class EngineServices:
    """The ports and settings every part of the engine works with."""

    store: TransactionStore
    tools: ToolRunner
    sink: EffectSink
    clock: Clock
    ids: IdSource
    clean: Callable[[str], Hint]
    limits: Limits = field(default_factory=Limits)
    settings: EngineSettings = field(default_factory=EngineSettings)
