"""Ways out for committed effects: a file of JSON lines, webhooks, and the choice between them by channel."""

from __future__ import annotations

from agenttx_server.sinks.json_lines import JsonLinesSink
from agenttx_server.sinks.routing import ChannelRouter

__all__ = ["ChannelRouter", "JsonLinesSink"]
