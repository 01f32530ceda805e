"""The public keys of an issuer of JWTs: a JWKS (RFC 7517) in a file or at an address, kept and looked at again.

Keys are asked for again when they are old, and, at most every ten seconds, when a token names one that isn't there: that is how
an issuer's rotation begins. Where that fails the keys of before stay for an hour, and then nobody's token is good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jwt
import orjson
import structlog

from agenttx_server.access.errors import JwtKeysUnavailable
from agenttx_server.engine.ports import Clock

__all__ = ["IssuerKey", "JwtKeys", "JwtKeysRefused", "loader_of", "parse_keys"]

FRESH_SECONDS = 300.0
LONGEST_SECONDS = 3600.0
LEAST_SECONDS_BETWEEN = 10.0
LOAD_SECONDS = 5.0
LARGEST_BYTES = 1 << 20
MOST_KEYS = 256

Loader = Callable[[], Awaitable[bytes]]


class JwtKeysRefused(Exception):
    """The keys can't be used; the message is one line."""


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key, as the library for signatures has it, and the one algorithm that it is for, None if the issuer names none."""

    public: Any
    algorithm: str | None


class JwtKeys:
    """The keys of one issuer, by their ids. For one event loop.

    ``version`` is another one whenever the keys are: what was found with those of before is to be forgotten.
    """

    def __init__(self, load: Loader, clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._keys: Mapping[str, IssuerKey] = {}
        self._content = b""
        self._loaded_at: float | None = None
        self._tried_at: float | None = None
        self._loading: asyncio.Task[None] | None = None
        self.version = 0

    def is_old(self) -> bool:
        """Whether the keys ought to be looked at again."""
        return self._loaded_at is None or self._clock.monotonic() - self._loaded_at > FRESH_SECONDS

    async def find(self, key_id: str) -> IssuerKey | None:
        """Return a key, looking again if it isn't there or the keys are old. Raises JwtKeysUnavailable."""
        if (self.is_old() or key_id not in self._keys) and self._may_try():
            await self._refresh()
        if self._loaded_at is None or self._clock.monotonic() - self._loaded_at > LONGEST_SECONDS:
            raise JwtKeysUnavailable
        return self._keys.get(key_id)

    async def start(self) -> None:
        """Load the keys for the first time. Raises JwtKeysRefused."""
        await self._take()

    def _may_try(self) -> bool:
        return (
            self._loading is not None
            or self._tried_at is None
            or self._clock.monotonic() - self._tried_at >= LEAST_SECONDS_BETWEEN
        )

    async def _refresh(self) -> None:
        if self._loading is None:
            self._tried_at = self._clock.monotonic()
            self._loading = asyncio.create_task(self._try_again())
            self._loading.add_done_callback(self._done)
        # Shielded: a caller that leaves must not end the look of others.
        await asyncio.shield(self._loading)

    def _done(self, _: object) -> None:
        self._loading = None

    async def _try_again(self) -> None:
        try:
            await self._take()
        except JwtKeysRefused as refused:
            structlog.get_logger().error("keys of the JWT issuer not renewed", reason=str(refused))

    async def _take(self) -> None:
        self._tried_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(LOAD_SECONDS):
                content = await self._load()
        except TimeoutError:
            raise JwtKeysRefused(f"the keys did not come within {LOAD_SECONDS:g} s") from None
        keys = self._keys if content == self._content else parse_keys(content)
        if content != self._content:
            self._keys, self._content = MappingProxyType(dict(keys)), content
            self.version += 1
        self._loaded_at = self._clock.monotonic()


def parse_keys(content: bytes) -> dict[str, IssuerKey]:
    """Read a JWKS: its keys for signatures that have an id. Raises JwtKeysRefused.

    Keys of kinds that this program doesn't know are passed over, as the RFC wants it; symmetric ones always.
    """
    try:
        entries = orjson.loads(content)["keys"]
    except (ValueError, KeyError, TypeError) as bad:
        raise JwtKeysRefused("the keys are no JWKS: JSON with a list named keys") from bad
    if not isinstance(entries, list) or len(entries) > MOST_KEYS:
        raise JwtKeysRefused(f"the keys are no list of at most {MOST_KEYS}")
    found: dict[str, IssuerKey] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue
        key_id = entry.get("kid")
        if not isinstance(key_id, str) or not key_id:
            continue
        try:
            # Of a key that names no algorithm the library assumes one; that is no word of the issuer's.
            found[key_id] = IssuerKey(jwt.PyJWK(entry).key, entry.get("alg") or None)
        except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError):
            continue
    if not found:
        raise JwtKeysRefused("there is no key for signatures with a kid among the keys")
    return found


def loader_of(place: str) -> Loader:
    """Return what loads keys from a file or an https address."""
    if "://" in place:
        return _at(place)
    path = Path(place).expanduser().absolute()

    async def load() -> bytes:
        try:
            return await asyncio.to_thread(_read, path)
        except OSError as error:
            raise JwtKeysRefused(f"the keys in {path} can't be read: {error.strerror}") from error

    return load


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(LARGEST_BYTES)


def _at(address: str) -> Loader:
    # Only now: most servers fetch no keys.
    import httpx2

    async def load() -> bytes:
        content = bytearray()
        try:
            async with (
                httpx2.AsyncClient(timeout=LOAD_SECONDS, follow_redirects=False) as client,
                client.stream("GET", address, headers={"accept": "application/json"}) as answer,
            ):
                if answer.status_code != 200:
                    raise JwtKeysRefused(f"the keys' address answered {answer.status_code}")
                async for piece in answer.aiter_bytes():
                    content += piece
                    if len(content) > LARGEST_BYTES:
                        raise JwtKeysRefused(f"the keys are larger than {LARGEST_BYTES} bytes")
        except httpx2.HTTPError as error:
            raise JwtKeysRefused(f"the keys can't be fetched: {type(error).__name__}") from error
        return bytes(content)

    return load
