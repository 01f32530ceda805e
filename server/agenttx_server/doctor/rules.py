"""Files of rules that a start reads, by the very loaders that it uses, and modules and packages that it imports."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from agenttx_server.access.certificate_rules import load_certificate_rules
from agenttx_server.access.tenant_rules import load_tenant_rules
from agenttx_server.doctor.findings import Finding, Level
from agenttx_server.engine import hints
from agenttx_server.engine.operator_files import FileRefused
from agenttx_server.http_secrets import load_secrets
from agenttx_server.settings import Settings
from agenttx_server.store import load_payload_keys
from agenttx_server.tool_secrets import load_tool_secrets
from agenttx_server.tools.approval_rules import load_approval_rules

__all__ = ["look_at_rules"]


def look_at_rules(settings: Settings) -> Iterator[Finding]:
    """Read the files of rules that the settings name; look for the modules of tools and reducers without importing them."""
    for flag, path, load in _files(settings):
        if path is None:
            continue
        try:
            load(path)
        except FileRefused as refused:
            yield Finding(Level.ERROR, f"--{flag}", str(refused), "mend the file, or take the setting away")
        else:
            yield Finding(Level.OK, f"--{flag}", str(path))
    for flag, names in (("tools", settings.tools), ("reducers", settings.reducers)):
        for name in names:
            yield from _module(flag, name)
    yield from _extras(settings)


def _files(settings: Settings) -> tuple[tuple[str, Path | None, Callable[[Path], Any]], ...]:
    return (
        ("tenants-file", settings.tenants_file, load_tenant_rules),
        ("certificates-file", settings.certificates_file, load_certificate_rules),
        ("hint-rules-file", settings.hint_rules_file, hints.load_cleaner),
        ("approvals-file", settings.approvals_file, load_approval_rules),
        ("tool-secrets-file", settings.tool_secrets_file, load_tool_secrets),
        ("encryption-keys-file", settings.encryption_keys_file, load_payload_keys),
        # Read only where there are tools that call over HTTP.
        ("http-secrets-file", settings.http_secrets_file if settings.http_allow else None, load_secrets),
    )


def _extras(settings: Settings) -> Iterator[Finding]:
    wanted = (
        ("--otlp-endpoint", settings.otlp_endpoint, "opentelemetry.sdk", "otel"),
        ("--mcp", settings.mcp, "mcp", "mcp"),
        ("--database-url", settings.database_url.startswith("postgresql"), "psycopg", "postgres"),
    )
    for flag, is_set, package, extra in wanted:
        if is_set and not _is_installed(package):
            yield Finding(
                Level.ERROR, flag, f"needs the extra {extra}", f"pip install 'agenttx[server,{extra}]'"
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _module(flag: str, name: str) -> Iterator[Finding]:
    package = name.partition(":")[0].partition(".")[0]
    if _is_installed(package):
        yield Finding(Level.OK, f"--{flag}", f"{name}: its package is installed")
    else:
        yield Finding(
            Level.ERROR,
            f"--{flag}",
            f"{name}: there is no package {package}",
            "install it into the server's environment, or put its directory into PYTHONPATH",
        )
