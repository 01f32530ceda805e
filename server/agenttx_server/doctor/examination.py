"""Everything that is looked at, in the order that a start would meet it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from agenttx_server.doctor.database import look_at_database
from agenttx_server.doctor.disk import look_at_disk
from agenttx_server.doctor.findings import Finding
from agenttx_server.doctor.rules import look_at_rules
from agenttx_server.doctor.transport import look_at_transport
from agenttx_server.settings import Settings

__all__ = ["examine"]


def examine(settings: Settings, now: datetime) -> Sequence[Finding]:
    """Look at what a server with these settings would meet, without changing anything; ``now`` is aware.

    A part that is out of reach is a finding; nothing is raised for it.
    """
    return [
        *look_at_transport(settings, now),
        *look_at_disk(settings),
        *look_at_rules(settings),
        *look_at_database(settings, now),
    ]
