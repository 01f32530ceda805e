"""Where committed effects go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from agenttx_server.engine.ports import EffectSink
from agenttx_server.settings import Settings
from agenttx_server.sinks import ChannelRouter, JsonLinesSink
from agenttx_server.tools.remote_workers import RemoteWorkers
from agenttx_server.webhook_targets import ALL_OTHERS

__all__ = ["sinks_of"]


def sinks_of(settings: Settings, stack: AsyncExitStack) -> Callable[[RemoteWorkers], EffectSink]:
    """Return what makes the sink of a tenant: its workers' channels, and the server's own targets."""
    file = JsonLinesSink(settings.outbox_file)
    stack.callback(file.close)
    targets = settings.webhooks_by_channel
    if not targets:
        return lambda workers: ChannelRouter({}, file, workers)
    # Only now: most servers need no HTTP client.
    from agenttx_server.sinks.webhook import WebhookClient, WebhookSink

    client = WebhookClient(settings.webhook_timeout_seconds, settings.max_concurrent_deliveries)
    stack.push_async_callback(client.close)
    by_channel: dict[str, EffectSink] = {
        channel: WebhookSink(client, target) for channel, target in targets.items()
    }
    others = by_channel.pop(ALL_OTHERS, file)
    return lambda workers: ChannelRouter(by_channel, others, workers)
