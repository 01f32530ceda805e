"""What settings must fit together: each rule names the setting that is to be changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.listen_address import HIGHEST_PORT

if TYPE_CHECKING:
    from agenttx_server.settings import Settings

__all__ = ["Misfit", "check"]

JWT_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class Misfit(ValueError):
    """A setting that does not fit the others; the message is one line and never holds what may be secret."""

    def __init__(self, setting: str, why: str) -> None:
        super().__init__(why)
        self.setting = setting


def check(settings: Settings) -> None:
    """Raise Misfit for the first rule that is broken."""
    for rule in _RULES:
        rule(settings)


def _mcp_servers_can_be_mounted(settings: Settings) -> None:
    try:
        _ = settings.mcp_servers
    except FileRefused as refused:
        raise Misfit("mcp_rules_file", str(refused)) from None
    except ValueError as problem:
        raise Misfit("mcp", str(problem)) from None


def _webhooks_can_be_used(settings: Settings) -> None:
    try:
        _ = settings.webhooks_by_channel
    except ValueError as problem:
        raise Misfit("webhooks", str(problem)) from None


def _tools_are_kept_off_our_own_files(settings: Settings) -> None:
    ours = [settings.outbox_file]
    if settings.database_url.startswith("sqlite"):
        ours.append(Path(settings.database_url.partition("///")[2]))
    secret = (
        settings.http_secrets_file,
        settings.tool_secrets_file,
        settings.encryption_keys_file,
        settings.tls_key,
    )
    ours += [path for path in secret if path is not None]
    for path in ours:
        if settings.fs_tools and path.is_absolute() and path.is_relative_to(settings.fs_root):
            raise Misfit(
                "fs_root",
                f"{settings.fs_root} holds {path}, which the fs.* tools could then read or overwrite",
            )


def _workers_share_what_can_be_shared(settings: Settings) -> None:
    if settings.workers > 1 and not settings.database_url.startswith("postgresql"):
        raise Misfit("workers", "several need a PostgreSQL database; a SQLite file is one server's")
    if settings.workers > 1 and settings.address.socket_path is not None:
        raise Misfit("workers", "several can't share a Unix socket; listen on a port")
    metrics = settings.metrics_address(settings.workers)
    if metrics is not None and metrics.port > HIGHEST_PORT:
        raise Misfit("metrics_listen", f"{settings.workers} workers need as many ports from there on")


def _all_of_tls_is_given(settings: Settings) -> None:
    if settings.tls_certificate is None and settings.tls_key is not None:
        raise Misfit("tls_key", "the certificate and its key belong together; give tls_certificate too")
    if settings.tls_certificate is not None and settings.tls_key is None:
        raise Misfit("tls_certificate", "the certificate and its key belong together; give tls_key too")
    if settings.tls_certificate is None and settings.tls_client_ca is not None:
        raise Misfit("tls_client_ca", "clients' certificates need TLS; give tls_certificate too")
    if settings.tls_client_ca is None and settings.certificates_file is not None:
        raise Misfit("certificates_file", "there are certificates of clients only with tls_client_ca")
    if settings.tls_certificate is not None and settings.address.socket_path is not None:
        raise Misfit("tls_certificate", "a Unix socket is served without TLS")


def _all_of_jwt_is_given(settings: Settings) -> None:
    names = ("jwt_issuer", "jwt_audience", "jwt_keys")
    missing = [name for name in names if not getattr(settings, name)]
    if 0 < len(missing) < len(names):
        raise Misfit(missing[0], f"{', '.join(names)} belong together; give all or none")
    if set(settings.jwt_algorithms) - set(JWT_ALGORITHMS) or not settings.jwt_algorithms:
        raise Misfit("jwt_algorithms", f"give some of {', '.join(JWT_ALGORITHMS)}")
    scheme, separator, _ = settings.jwt_keys.partition("://")
    if separator and scheme != "https":
        raise Misfit(
            "jwt_keys", "give a file or an https address; on any other way others could give their keys"
        )


_RULES: tuple[Callable[[Settings], None], ...] = (
    _mcp_servers_can_be_mounted,
    _webhooks_can_be_used,
    _tools_are_kept_off_our_own_files,
    _workers_share_what_can_be_shared,
    _all_of_tls_is_given,
    _all_of_jwt_is_given,
)
