"""Effects sent as HTTP POST requests, one each.

A 2xx answer is a delivery, whatever its body. Answers that speak of this very request
(:data:`PERMANENT`) end it; every other answer, a redirect too, and every failure to get one, means that it
is tried again: endpoints are deployed late, credentials expire, and proxies answer for servers
that are away. Neither URL nor credentials nor payload are ever part of an error's text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import quote

import httpx2
import orjson

from agenttx_server.engine.ports import DeliveryFailed
from agenttx_server.engine.records import EffectRecord, TransactionId
from agenttx_server.retry_after import retry_after_seconds
from agenttx_server.sinks.effect_fields import effect_fields
from agenttx_server.trace_context import trace_headers
from agenttx_server.webhook_targets import WebhookTarget

__all__ = ["PERMANENT", "WebhookClient", "WebhookSink"]

PERMANENT = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.NOT_ACCEPTABLE,
        HTTPStatus.GONE,
        HTTPStatus.LENGTH_REQUIRED,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.REQUEST_URI_TOO_LONG,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    }
)
# Of an answer's body so much is read: to say what was wrong, and to use the connection again.
QUOTED_BYTES = 512
READ_BYTES = 64 * 1024
# What may stand in a header as it is; the rest of an idempotency key is percent-encoded there.
_HEADER_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class WebhookClient:
    """The connections that all webhooks share. ``timeout_seconds`` bounds one delivery as a whole."""

    def __init__(self, timeout_seconds: float, most_connections: int) -> None:
        self.timeout_seconds = timeout_seconds
        self.http = httpx2.AsyncClient(
            follow_redirects=False,  # credentials and payload go to the host that was configured
            timeout=httpx2.Timeout(timeout_seconds, pool=None),
            limits=httpx2.Limits(max_connections=most_connections),
            headers={"User-Agent": "agenttx", "Accept": "*/*"},
        )

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()


class WebhookSink:
    """Posts effects to one URL."""

    def __init__(
        self, client: WebhookClient, target: WebhookTarget, now: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._url = httpx2.URL(target.url)
        self._authorization = target.authorization
        self._now = now

    async def deliver(self, transaction_id: TransactionId, effect: EffectRecord) -> None:
        """Post one effect.

        Raises:
            DeliveryFailed: no answer within the time, or one that isn't 2xx.
        """
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": quote(effect.idempotency_key, safe=_HEADER_SAFE),
            **trace_headers(),
        }
        if self._authorization:
            headers["Authorization"] = self._authorization
        body = orjson.dumps(effect_fields(transaction_id, effect))
        try:
            async with (
                asyncio.timeout(self._client.timeout_seconds),
                self._client.http.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                if response.is_success:
                    await _read_rest(response)
                else:
                    raise await self._refused(response)
        except TimeoutError:
            raise DeliveryFailed(
                f"{self._host} did not answer within {self._client.timeout_seconds:g} s"
            ) from None
        except httpx2.RequestError as error:
            raise DeliveryFailed(f"{self._host}: {_told(error)}") from error

    @property
    def _host(self) -> str:
        port = self._url.port
        return self._url.host if port is None else f"{self._url.host}:{port}"

    async def _refused(self, response: httpx2.Response) -> DeliveryFailed:
        status = response.status_code
        quoted = await _beginning(response)
        named = f"{status} {response.reason_phrase}".strip()
        return DeliveryFailed(
            f"{self._host} answered {named}" + (f": {quoted}" if quoted else ""),
            permanent=status in PERMANENT,
            retry_after_seconds=retry_after_seconds(response.headers.get("Retry-After", ""), self._now()),
        )


async def _read_rest(response: httpx2.Response) -> None:
    """Read what little there is, so that the connection can be used again; a long body is cut off with it."""
    left = READ_BYTES
    # It is delivered: an answer whose body breaks off or takes too long changes nothing.
    with suppress(httpx2.HTTPError, httpx2.StreamError, TimeoutError):
        async with asyncio.timeout(1.0):
            async for chunk in response.aiter_raw():
                left -= len(chunk)
                if left < 0:
                    return


async def _beginning(response: httpx2.Response) -> str:
    """Return the first line or so of a body, as text."""
    read = b""
    with suppress(httpx2.HTTPError, httpx2.StreamError, TimeoutError):
        async with asyncio.timeout(1.0):
            async for chunk in response.aiter_bytes():
                read += chunk[: QUOTED_BYTES - len(read)]
                if len(read) >= QUOTED_BYTES:
                    break
    return " ".join(read.decode("utf-8", "replace").split())


def _told(error: httpx2.RequestError) -> str:
    kinds = (
        (httpx2.ConnectTimeout, "no connection within the time"),
        (httpx2.TimeoutException, "no answer within the time"),
        (httpx2.ConnectError, "no connection"),
        (httpx2.RemoteProtocolError, "the connection broke off, or what answers speaks no HTTP"),
    )
    name = next((text for kind, text in kinds if isinstance(error, kind)), "the request failed")
    cause = " ".join(str(error).split())
    return f"{name} ({cause})" if cause else name
