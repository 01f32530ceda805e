"""Sends requests to allowed hosts and public addresses only, within limits of time and size.

A name is resolved once for each connection, every address it has is checked, and the connection is made
to a checked one: what the name resolves to afterwards changes nothing. TLS and the Host header keep the
name. Each request, and each hop of a redirect, has a connection of its own: a pool keyed by address would
use one host's connection for another host of the same address. Proxies of the environment are not used,
as they would resolve the name again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx2

from agenttx_server.engine.records import HintCategory
from agenttx_server.http_hosts import HostPattern, Network, any_matches
from agenttx_server.http_secrets import Secrets
from agenttx_server.tools.http.addresses import Address, may_be_reached
from agenttx_server.tools.http.answers import Answer, AnswerLost, Cut, NotDone
from agenttx_server.tools.http.content_encoding import BadEncoding, decoded
from agenttx_server.tools.http.outgoing import Outgoing
from agenttx_server.tools.http.target import Target, origin_text
from agenttx_server.trace_context import trace_headers

__all__ = ["HttpClient", "HttpLimits", "Resolve", "resolve_name"]

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]

# Of several addresses one may be away: so long is waited for it before the next one is tried.
CONNECT_SECONDS = 5.0
MOST_ADDRESSES = 8
# How much larger than decoded a compressed body may be: headers, and blocks that did not get smaller.
ENCODING_BYTES = 64 * 1024

_METHOD_KEEPING: Final = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
_REDIRECTS: Final = _METHOD_KEEPING | {
    HTTPStatus.MOVED_PERMANENTLY,
    HTTPStatus.FOUND,
    HTTPStatus.SEE_OTHER,
}


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What requests may do. ``private_networks`` are reached though they are not public."""

    allowed: tuple[HostPattern, ...]
    private_networks: tuple[Network, ...] = ()
    timeout_seconds: float = 20.0
    response_bytes: int = 1 << 20
    redirects: int = 5
    ca_file: Path | None = None


@dataclass(slots=True)
class _Progress:
    """How far a request got, for when the time is up: sent at all, and answered by what."""

    sent: bool = False
    head: Answer | None = None

    async def trace(self, event: str, _: Any) -> None:
        if event.endswith("send_request_headers.started"):
            self.sent = True


async def resolve_name(host: str, port: int) -> list[Address]:
    """Return the addresses that a name has now.

    Raises:
        OSError: it has none, or the resolver does not answer.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    return list(dict.fromkeys(addresses))


class HttpClient:
    """Sends requests within limits. Raises ValueError where the file of certificates can't be read."""

    def __init__(self, limits: HttpLimits, secrets: Secrets, resolve: Resolve = resolve_name) -> None:
        self.limits = limits
        self._secrets = secrets
        self._resolve = resolve
        try:
            self._tls = (
                httpx2.create_ssl_context(trust_env=False)
                if limits.ca_file is None
                else ssl.create_default_context(cafile=limits.ca_file)
            )
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"{limits.ca_file}: {error.strerror or 'holds no certificates'}") from None

    async def send(self, outgoing: Outgoing, seconds: float) -> Answer:
        """Send a request, follow redirects, and return the final answer, whatever its status.

        Safe requests follow every redirect; others those that ask for the same request elsewhere (307,
        308), for they say that nothing was done: 301 to 303 do not.

        Args:
            outgoing: what to send.
            seconds: time for all of it, cut to the limit.

        Raises:
            NotDone: it was refused, or could not be sent.
            AnswerLost: it was sent and not answered.
        """
        seconds = min(seconds, self.limits.timeout_seconds)
        progress = _Progress()
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                return await self._follow(outgoing, progress)
        except TimeoutError:
            took = f"within {seconds:g} s"
            if progress.head is not None:
                return _cut(progress.head, HintCategory.TIMEOUT, f"its body did not end {took}")
            message = f"{origin_text(outgoing.target)} did not answer {took}"
            if progress.sent:
                raise AnswerLost(HintCategory.TIMEOUT, message) from None
            raise NotDone(HintCategory.TIMEOUT, message) from None

    def check_allowed(self, target: Target) -> None:
        """Raise NotDone if the settings don't allow requests there."""
        if not any_matches(self.limits.allowed, *target.origin):
            raise NotDone(
                HintCategory.PERMISSION_DENIED,
                f"{origin_text(target)} is not among the hosts that this server may send requests to. "
                "Use one that is allowed.",
                ("url",),
            )

    async def _follow(self, outgoing: Outgoing, progress: _Progress) -> Answer:
        for _ in range(self.limits.redirects + 1):
            progress.sent, progress.head = False, None
            answer = await self._exchange(outgoing, progress)
            if not _is_followed(outgoing, answer):
                return answer
            progress.sent, progress.head = False, None  # by its own word it did nothing
            outgoing = self._sent_on(outgoing, answer)
        raise NotDone(
            HintCategory.HTTP_CLIENT_ERROR,
            f"more than {self.limits.redirects} redirects, the last one from {origin_text(outgoing.target)}. "
            "Correct the URL.",
            ("url",),
        )

    def _sent_on(self, outgoing: Outgoing, answer: Answer) -> Outgoing:
        try:
            target = outgoing.target.joined(answer.header("location"))
            self.check_allowed(target)
            if self._secrets.leaks(target.url, *target.origin):
                raise ValueError("the redirect would take a secret to another host")
            return outgoing.sent_on(target)
        except NotDone as refused:
            raise NotDone(
                refused.category, f"{origin_text(outgoing.target)} redirects: {refused.message}", ("url",)
            ) from None
        except ValueError as error:
            raise NotDone(
                HintCategory.PERMISSION_DENIED,
                f"{origin_text(outgoing.target)} redirects where requests must not go: {error}. "
                "Ask for the right URL at once.",
                ("url",),
            ) from None

    async def _exchange(self, outgoing: Outgoing, progress: _Progress) -> Answer:
        self.check_allowed(outgoing.target)
        addresses = await self._addresses(outgoing.target)
        last = len(addresses) - 1
        for position, address in enumerate(addresses):
            seconds = self.limits.timeout_seconds if position == last else CONNECT_SECONDS
            try:
                return await self._exchange_at(address, outgoing, progress, seconds)
            except Exception as error:
                # Whatever it is: once the request is out, a failure would say that nothing happened.
                if progress.sent:
                    raise self._lost(outgoing, error) from None
                if not isinstance(error, httpx2.HTTPError):
                    raise
                if position == last or not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    raise self._not_sent(outgoing, error) from None
        raise AssertionError("there is an address, or it was refused")

    async def _addresses(self, target: Target) -> Sequence[Address]:
        """Return the addresses to connect to, all of them checked."""
        try:
            addresses: Sequence[Address] = [ipaddress.ip_address(target.host)]
        except ValueError:
            try:
                addresses = await self._resolve(target.host, target.port)
            except OSError as error:
                raise NotDone(
                    HintCategory.CONNECTION,
                    f"the name {target.host} has no address ({error.strerror or 'unknown'}). Check the URL, then retry.",
                    ("url",),
                ) from None
        # Refused as a whole: of a name that has both kinds, none is worth a try.
        if not addresses or not all(may_be_reached(one, self.limits.private_networks) for one in addresses):
            raise NotDone(
                HintCategory.PERMISSION_DENIED,
                f"{target.host} is at an address that is not public, and requests must not go there. "
                "Use a public host.",
                ("url",),
            )
        return addresses[:MOST_ADDRESSES]

    async def _exchange_at(
        self, address: Address, outgoing: Outgoing, progress: _Progress, connect_seconds: float
    ) -> Answer:
        target = outgoing.target
        host = f"[{address}]" if address.version == 6 else str(address)
        request = httpx2.Request(
            outgoing.method,
            f"{target.scheme}://{host}:{target.port}/",
            headers=[("Host", target.authority), *outgoing.headers, *_trace_headers(outgoing)],
            content=outgoing.body,
            extensions={
                "target": target.path.encode("ascii"),
                "sni_hostname": target.host,
                "timeout": {"connect": connect_seconds},
                "trace": progress.trace,
            },
        )
        transport = httpx2.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )
        async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
            response = await client.send(request, stream=True, follow_redirects=False)
            try:
                return await self._received(outgoing, response, progress)
            finally:
                await response.aclose()

    async def _received(self, outgoing: Outgoing, response: httpx2.Response, progress: _Progress) -> Answer:
        headers = tuple((name.lower(), value) for name, value in response.headers.multi_items())
        head = Answer(response.status_code, response.reason_phrase, headers, b"", outgoing.target)
        if _is_followed(outgoing, head):
            return head
        progress.head = head
        limit = self.limits.response_bytes
        too_large = _cut(head, HintCategory.RESOURCE_EXHAUSTED, f"its body is larger than {limit} bytes")
        body = bytearray()
        sent = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal sent
            async for chunk in response.aiter_raw():
                sent += len(chunk)
                # What is larger compressed than it may be decoded is there to make work.
                if sent > limit + ENCODING_BYTES:
                    return
                yield chunk

        try:
            async for piece in decoded(head.header("content-encoding"), chunks()):
                body += piece
                if len(body) > limit:
                    return too_large
        except BadEncoding as bad:
            if sent <= limit + ENCODING_BYTES:
                return _cut(head, HintCategory.HTTP_SERVER_ERROR, str(bad))
        except Exception:  # the status counts, whatever became of the body
            return _cut(head, HintCategory.CONNECTION, "its body broke off")
        if sent > limit + ENCODING_BYTES:
            return too_large
        return Answer(head.status, head.reason, headers, bytes(body), outgoing.target)

    def _lost(self, outgoing: Outgoing, error: Exception) -> AnswerLost:
        timed_out = isinstance(error, httpx2.TimeoutException)
        category = HintCategory.TIMEOUT if timed_out else HintCategory.CONNECTION
        return AnswerLost(
            category, f"{origin_text(outgoing.target)} took the request, then {self._told(error)}"
        )

    def _not_sent(self, outgoing: Outgoing, error: httpx2.HTTPError) -> NotDone:
        timed_out = isinstance(error, httpx2.TimeoutException)
        category = HintCategory.TIMEOUT if timed_out else HintCategory.CONNECTION
        return NotDone(
            category,
            f"no connection to {origin_text(outgoing.target)}: {self._told(error)}. "
            "Check that it is up and the URL right, then retry.",
        )

    def _told(self, error: Exception) -> str:
        cause = self._secrets.mask(" ".join(str(error).split()))[:200].rstrip(".")
        return cause or type(error).__name__


def _is_followed(outgoing: Outgoing, answer: Answer) -> bool:
    statuses = _REDIRECTS if outgoing.is_safe else _METHOD_KEEPING
    return answer.status in statuses and bool(answer.header("location"))


def _trace_headers(outgoing: Outgoing) -> list[tuple[str, str]]:
    given = {name.lower() for name, _ in outgoing.headers}
    return [header for header in trace_headers().items() if header[0] not in given]


def _cut(head: Answer, category: HintCategory, why: str) -> Answer:
    cut = Cut(category, f"{origin_text(head.target)} answered {head.status}, but {why}")
    return Answer(head.status, head.reason, head.headers, b"", head.target, cut)
