"""Which channels' effects go to which URLs, as the settings say it: ``CHANNEL=URL``."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

__all__ = ["ALL_OTHERS", "WebhookTarget", "by_channel", "targets"]

# As a channel: every one that isn't named.
ALL_OTHERS = "*"


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """Where a channel's effects are sent; ``authorization`` is the header's value, empty for none."""

    url: str = field(repr=False)
    authorization: str = field(default="", repr=False)


def by_channel(entries: Iterable[str], what: str) -> dict[str, str]:
    """Take ``CHANNEL=VALUE`` entries apart.

    Raises:
        ValueError: one line, which never holds a value: URLs and credentials are secrets.
    """
    found: dict[str, str] = {}
    for number, entry in enumerate(entries, start=1):
        channel, equals, value = entry.partition("=")
        channel, value = channel.strip(), value.strip()
        # An entry without a channel may well be the bare secret, so not even its beginning is shown.
        if not equals or not channel or not value or "/" in channel or " " in channel:
            raise ValueError(f"entry {number} is not CHANNEL={what}")
        if channel in found:
            raise ValueError(f"names channel {channel!r} twice")
        found[channel] = value
    return found


def targets(webhooks: Mapping[str, str], authorization: Mapping[str, str]) -> dict[str, WebhookTarget]:
    """Return each channel's target.

    Raises:
        ValueError: a URL is none that can be posted to, or a credential has no webhook or would cross
            a network unencrypted.
    """
    for channel, url in webhooks.items():
        _check_url(channel, url)
    for channel in authorization:
        if channel not in webhooks:
            # The name may be the beginning of a bare secret, so it is not shown.
            known = ", ".join(sorted(webhooks)) or "none"
            raise ValueError(f"an authorization is for a channel without a webhook; those with one: {known}")
        if not _is_private(webhooks[channel]):
            raise ValueError(
                f"the authorization of channel {channel!r} would cross the network unencrypted; use https"
            )
        if not authorization[channel].isascii() or not authorization[channel].isprintable():
            raise ValueError(f"the authorization of channel {channel!r} is no header's value")
    return {channel: WebhookTarget(url, authorization.get(channel, "")) for channel, url in webhooks.items()}


def _check_url(channel: str, url: str) -> None:
    problem = f"the webhook of channel {channel!r} is no URL such as https://example.org/effects"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(problem) from None
    if not usable or not url.isascii() or not url.isprintable() or " " in url or parts.fragment:
        raise ValueError(problem)


def _is_private(url: str) -> bool:
    """Whether what is sent there can't be read on its way."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https" or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
