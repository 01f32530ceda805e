"""Stored values sealed and opened: AES-256-GCM, the name of the key in front of each.

A sealed value is a text: ``sealed:1:NAME:`` and in base64 a salt (16 bytes), a nonce (12), the ciphertext and its tag (16). What is
encrypted with is not the key of that name but one derived from it and the salt (HKDF-SHA256). A process draws a salt of its own,
and a new one after 2^32 values: random nonces under one key would have to end there, which a busy server reaches in
two days. The *binding*, which says whose value it is, is authenticated with it, so a value put elsewhere can't be opened.

No JSON text begins as a sealed value does. A value that holds nothing (an empty text, ``{}``) stays as it is.
"""

from __future__ import annotations

import os
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable
from hashlib import sha256
from hmac import digest
from itertools import count
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agenttx_server.engine.ports import StoredValueDamaged
from agenttx_server.store.payload_keys import PayloadKeys

__all__ = ["HOLDS_NOTHING", "SEALED", "PayloadCodec"]

SEALED: Final = "sealed:1:"
HOLDS_NOTHING: Final = frozenset({"", "{}", "[]", "null", '""'})

_SALT, _NONCE, _TAG = 16, 12, 16
_VALUES_A_SALT: Final = 1 << 32
# Far above what a request may bring, far below what AES-GCM takes (2^36 bytes).
_MOST_BYTES: Final = 1 << 28
_MOST_SALTS: Final = 4_096


class PayloadCodec:
    """Seals with the active key and opens with any; safe in any thread."""

    def __init__(self, keys: PayloadKeys, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._keys = keys
        self._random = random_bytes
        self._active = keys.active
        self._head = f"{SEALED}{keys.active}:"
        self._ciphers: dict[tuple[str, bytes], AESGCM] = {}
        self._sealing = self._new_sealing() if keys.active else None
        self._token_keys = {name: _derived(key, b"", b"agenttx lookup 1") for name, key in keys.keys.items()}

    @property
    def keys(self) -> PayloadKeys:
        """What it was made of."""
        return self._keys

    def seal(self, text: str, bound: bytes) -> str:
        """Return a value sealed with the active key; as it is where there is none, or where it holds nothing.

        Raises ValueError for one that is too large.
        """
        if self._sealing is None or text in HOLDS_NOTHING:
            return text
        salt, cipher, numbers = self._sealing
        if next(numbers) >= _VALUES_A_SALT:
            self._sealing = salt, cipher, _ = self._new_sealing()
        plain = text.encode()
        if len(plain) > _MOST_BYTES:
            raise ValueError(f"a value of {len(plain)} bytes is too large to be sealed")
        nonce = self._random(_NONCE)
        sealed = b64encode(salt + nonce + cipher.encrypt(nonce, plain, bound))
        return self._head + sealed.decode("ascii")

    def open(self, text: str, bound: bytes) -> str:
        """Return a value as it was before it was sealed; a plain one as it is.

        Raises StoredValueDamaged: it was changed, or belongs elsewhere, or its key isn't known.
        """
        if not text.startswith(SEALED):
            return text
        name, _, encoded = text[len(SEALED) :].partition(":")
        if name not in self._keys.keys:
            raise StoredValueDamaged(
                f"{_place(bound)} is sealed with the key {name[:32]!r}, which is not in the file of keys"
            )
        try:
            sealed = a2b_base64(encoded, strict_mode=True)
            if len(sealed) < _SALT + _NONCE + _TAG:
                raise ValueError
            salt, nonce = sealed[:_SALT], sealed[_SALT : _SALT + _NONCE]
            return self._cipher(name, salt).decrypt(nonce, sealed[_SALT + _NONCE :], bound).decode()
        except (InvalidTag, ValueError):
            raise StoredValueDamaged(
                f"{_place(bound)} was changed outside the server, or is another row's: the key {name!r} does not open it"
            ) from None

    def token(self, text: str, bound: bytes) -> str:
        """Return what stands for a value that is only looked for: equal for equal values and bindings, and says nothing else."""
        return text if self._active is None else self._token(self._active, text, bound)

    def tokens(self, text: str, bound: bytes) -> list[str]:
        """Return all that may stand for a value, from before and after each change of keys."""
        return [text, *(self._token(name, text, bound) for name in self._token_keys)]

    def _token(self, name: str, text: str, bound: bytes) -> str:
        code = digest(self._token_keys[name], bound + b"\0" + text.encode(), sha256)[:16]
        return f"{SEALED}{name}:{b64encode(code).decode('ascii')}"

    def _new_sealing(self) -> tuple[bytes, AESGCM, count[int]]:
        assert self._active is not None
        salt = self._random(_SALT)
        return salt, self._cipher(self._active, salt), count()

    def _cipher(self, name: str, salt: bytes) -> AESGCM:
        cipher = self._ciphers.get((name, salt))
        if cipher is None:
            if len(self._ciphers) >= _MOST_SALTS:
                self._ciphers.clear()
            cipher = AESGCM(_derived(self._keys.keys[name], salt, b"agenttx payload 1"))
            self._ciphers[name, salt] = cipher
        return cipher


def _derived(key: bytes, salt: bytes, purpose: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=salt, info=purpose).derive(key)


def _place(bound: bytes) -> str:
    name, *identity = orjson.loads(bound)
    return f"{name} of {', '.join(map(repr, identity))}" if identity else str(name)
