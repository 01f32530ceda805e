"""How a command comes to a client: its connection flags, and the life of the client.

A command is written as a function whose first parameter is the client; ``connected`` gives it the
flags and hands it an open client. So the flags are the same, and said once.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import agenttx

__all__ = ["Server", "at_server", "connected"]

PANEL = "Connection"
TIMEOUT_SECONDS = 10.0
CONNECT_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Server:
    """Where a command's server is and how it is spoken to, as the flags say; None is the SDK's default."""

    address: str | None
    tls: bool
    ca: Path | None
    certificate: Path | None
    private_key: Path | None
    server_name: str | None
    timeout_seconds: float

    def client(self) -> agenttx.Client:
        """Return a client; it connects on first use."""
        import agenttx

        return agenttx.Client(
            self.address,
            tls=self._tls(),
            retry=agenttx.RetryPolicy(overall_timeout_seconds=self.timeout_seconds),
            connect_timeout=min(self.timeout_seconds, CONNECT_TIMEOUT_SECONDS),
        )

    def async_client(self) -> agenttx.AsyncClient:
        """Return an asynchronous client with the SDK's own patience: for what goes on serving."""
        import agenttx

        return agenttx.AsyncClient(self.address, tls=self._tls(), connect_timeout=CONNECT_TIMEOUT_SECONDS)

    def flags(self) -> list[str]:
        """Return the flags that reach the same server from another process; defaults are left out."""
        given: list[tuple[str, object]] = [
            ("--address", self.address),
            ("--ca", self.ca and self.ca.absolute()),
            ("--cert", self.certificate and self.certificate.absolute()),
            ("--key", self.private_key and self.private_key.absolute()),
            ("--server-name", self.server_name),
        ]
        words = [word for flag, value in given if value for word in (flag, str(value))]
        return [*words, "--tls"] if self.tls else words

    def _tls(self) -> agenttx.Tls | None:
        if not (self.tls or self.ca or self.certificate or self.private_key or self.server_name):
            return None
        import agenttx

        return agenttx.Tls(self.ca, self.certificate, self.private_key, self.server_name)


def _describe_flags(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            "-a",
            metavar="HOST:PORT",
            envvar="AGENTTX_ADDRESS",
            help="The server: HOST:PORT, [IPV6]:PORT or unix:PATH. Default: 127.0.0.1:50051.".replace(
                "[", r"\["
            ),
            rich_help_panel=PANEL,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, help="Time for each call, retries included.", rich_help_panel=PANEL
        ),
    ] = TIMEOUT_SECONDS,
    tls: Annotated[
        bool,
        typer.Option(
            "--tls", envvar="AGENTTX_TLS", help="Speak TLS; the flags below imply it.", rich_help_panel=PANEL
        ),
    ] = False,
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="AGENTTX_CA",
            help="PEM file of the authorities to trust.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="AGENTTX_CLIENT_CERTIFICATE",
            help="PEM file of the client's certificate.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="AGENTTX_CLIENT_KEY",
            help="PEM file of its private key.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    server_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            envvar="AGENTTX_SERVER_NAME",
            help="Name to expect in the server's certificate.",
            rich_help_panel=PANEL,
        ),
    ] = None,
) -> Server:
    return Server(address, tls, ca, cert, key, server_name, timeout)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the connection flags, and an open client as its first argument."""
    # typer reads annotations at run time. The client's own is not for it, and evaluating it would load gRPC.
    placeholder = {"agenttx": SimpleNamespace(Client=object)}
    signature = inspect.signature(command, eval_str=True, locals=placeholder)

    @functools.wraps(command)
    def with_client(server: Server, **given: Any) -> None:
        with server.client() as client:
            command(client, **given)

    return _with_flags(with_client, signature)


def at_server(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the connection flags, and what they say as its first argument."""
    return _with_flags(command, inspect.signature(command, eval_str=True))


def _with_flags(command: Callable[..., None], signature: inspect.Signature) -> Callable[..., None]:
    own_parameters = list(signature.parameters.values())[1:]
    flags = inspect.signature(_describe_flags, eval_str=True).parameters

    @functools.wraps(command)
    def run(**given: Any) -> None:
        server = _describe_flags(**{name: given.pop(name) for name in flags})
        command(server, **given)

    parameters = [*own_parameters, *(flag.replace(kind=flag.KEYWORD_ONLY) for flag in flags.values())]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
