"""Where the server is and how it is spoken to: address, TLS, token, channel settings."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from agenttx.errors import ConfigurationError

__all__ = ["DEFAULT_ADDRESS", "MAX_MESSAGE_BYTES", "Endpoint", "Tls"]

DEFAULT_ADDRESS = "127.0.0.1:50051"
ADDRESS_VARIABLE = "AGENTTX_ADDRESS"
TOKEN_VARIABLE = "AGENTTX_TOKEN"
TLS_VARIABLE = "AGENTTX_TLS"
CA_VARIABLE = "AGENTTX_CA"
CERTIFICATE_VARIABLE = "AGENTTX_CLIENT_CERTIFICATE"
KEY_VARIABLE = "AGENTTX_CLIENT_KEY"
SERVER_NAME_VARIABLE = "AGENTTX_SERVER_NAME"
MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""Largest message in either direction, the same as the server's."""

_HOST_AND_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:/]+):(?P<port>[0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings: PEM text or the path of a PEM file each.

    Attributes:
        ca: The authorities to trust; None for those that gRPC ships with.
        certificate: The client's certificate chain, for servers that ask for one.
        private_key: Its key; needed with a certificate.
        server_name: The name to expect in the server's certificate, where it isn't the address's host.
    """

    ca: bytes | str | os.PathLike[str] | None = None
    certificate: bytes | str | os.PathLike[str] | None = None
    private_key: bytes | str | os.PathLike[str] | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the channel credentials, reading the files now.

        Raises:
            ConfigurationError: a file can't be read, or a certificate comes without its key or the other way round.
        """
        if (self.certificate is None) != (self.private_key is None):
            raise ConfigurationError("tls: certificate and private_key belong together; give both or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_pem("ca", self.ca),
            private_key=_pem("private_key", self.private_key),
            certificate_chain=_pem("certificate", self.certificate),
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address with what is needed to speak to it. The token never shows in its repr.

    Attributes:
        address: `HOST:PORT`, `[IPV6]:PORT` or `unix:PATH`, as given.
        is_local: Whether it is a loopback address or a Unix socket, so that nothing leaves the machine.
        tls: TLS settings; None for plain text.
        metadata: What goes with every call.
    """

    address: str
    is_local: bool
    tls: Tls | None
    metadata: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Endpoint({self.address!r}, tls={self.tls is not None})"

    @classmethod
    def resolve(
        cls,
        address: str | None,
        *,
        token: str | None,
        tls: Tls | bool | None,
        environment: Mapping[str, str] = os.environ,
    ) -> Endpoint:
        """Return the endpoint: what is given, else AGENTTX_ADDRESS, AGENTTX_TOKEN and those of TLS, else the default address.

        `tls=False` is plain text whatever the variables say.

        Raises:
            ConfigurationError: the address makes no sense, or a token would cross a network unencrypted.
        """
        if address is None:
            address = environment.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        token = token if token is not None else environment.get(TOKEN_VARIABLE, "")
        is_local = _is_local(address)
        settings = _tls_of(environment) if tls is None else (Tls() if tls is True else tls or None)
        metadata: tuple[tuple[str, str], ...] = ()
        if token:
            if not (is_local or settings):
                raise ConfigurationError(
                    f"a token is sent only over TLS, Unix sockets or loopback, and {address} is none of them: "
                    "give tls=True (or a Tls with the server's CA)"
                )
            if not token.isascii() or not token.isprintable():
                raise ConfigurationError("the token holds characters that can't be sent in a header")
            metadata = (("authorization", f"Bearer {token}"),)
        return cls(address, is_local, settings, metadata)

    def channel_options(self) -> list[tuple[str, str | int]]:
        """Return the gRPC channel arguments."""
        options: list[tuple[str, str | int]] = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # temporalio's figures; the server allows pings down to every 5 s.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 15_000),
            # Retries are retry_policy's: two layers would multiply.
            ("grpc.enable_retries", 0),
            # A client of its own connection: else a new client inherits the reconnect backoff of one that failed.
            ("grpc.use_local_subchannel_pool", 1),
            # Calls fail at once while a channel waits to reconnect; the first wait must not outlast our backoff.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1_000),
            ("grpc.max_reconnect_backoff_ms", 5_000),
        ]
        if self.is_local:
            # gRPC sends even loopback connections to http_proxy.
            options.append(("grpc.enable_http_proxy", 0))
        if self.tls and self.tls.server_name:
            options.append(("grpc.ssl_target_name_override", self.tls.server_name))
        return options


def _tls_of(environment: Mapping[str, str]) -> Tls | None:
    """The settings that variables give; None if they say nothing of TLS."""
    named = {
        "ca": environment.get(CA_VARIABLE) or None,
        "certificate": environment.get(CERTIFICATE_VARIABLE) or None,
        "private_key": environment.get(KEY_VARIABLE) or None,
        "server_name": environment.get(SERVER_NAME_VARIABLE) or None,
    }
    switch = environment.get(TLS_VARIABLE, "").lower()
    if switch not in ("", "true", "false", "1", "0"):
        raise ConfigurationError(f"{TLS_VARIABLE} is true or false, and not {switch!r}")
    if switch in ("false", "0") or not (switch or any(named.values())):
        return None
    return Tls(**named)


def _is_local(address: str) -> bool:
    """Whether nothing sent there leaves the machine; refuses what is no address."""
    if address.startswith("unix:"):
        if address in ("unix:", "unix://"):
            raise ConfigurationError(f"{address!r} names no socket: give unix:PATH")
        return True
    match = _HOST_AND_PORT.fullmatch(address)
    if match and not 0 < int(match["port"]) < 65536:
        raise ConfigurationError(f"{address!r}: ports go from 1 to 65535")
    if not match:
        raise ConfigurationError(
            f"{address!r} is no address: give HOST:PORT, [IPV6]:PORT or unix:PATH"
            + (" (TLS is chosen by tls=…, not by a scheme)" if "://" in address else "")
        )
    host = match["host"].strip("[]")
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # A name: where it leads is unknown here.


def _pem(name: str, source: bytes | str | os.PathLike[str] | None) -> bytes | None:
    if source is None or isinstance(source, bytes):
        return source
    text = os.fspath(source)
    if text.lstrip().startswith("-----BEGIN"):
        return text.encode()
    try:
        return Path(text).read_bytes()
    except OSError as failure:
        raise ConfigurationError(f"tls: {name} can't be read: {failure}") from failure
