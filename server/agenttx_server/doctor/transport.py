"""The address and its certificates: what would be served, to whom, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from agenttx_server.doctor.findings import Finding, Level
from agenttx_server.settings import Settings

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

__all__ = ["look_at_transport"]

SOON = timedelta(days=14)


def look_at_transport(settings: Settings, now: datetime) -> Iterator[Finding]:
    """Look at how the settings would have a server listen; ``now`` is aware."""
    if problem := settings.transport_problem:
        yield Finding(
            Level.ERROR,
            "address",
            problem.partition(":")[0],
            problem.partition(": ")[2] or "see docs/security.md",
        )
    elif not settings.address.is_local and settings.tls_certificate is None:
        yield Finding(
            Level.WARNING,
            "address",
            f"{settings.listen} is served in plain text beyond this machine",
            "give --tls-certificate and --tls-key, unless a mesh or a private network protects it",
        )
    else:
        yield Finding(Level.OK, "address", settings.listen)
    if settings.anonymous == "anyone" and not settings.address.is_local:
        yield Finding(
            Level.WARNING,
            "callers",
            "whoever reaches the address is served without credentials, as one caller",
            "take --anonymous anyone away and make tokens: agenttx token create",
        )
    if settings.tls_certificate is not None and settings.tls_key is not None:
        yield from _certificate(
            "TLS certificate", "--tls-certificate", settings.tls_certificate, now, settings.tls_key
        )
    if settings.tls_client_ca is not None:
        yield from _certificate("clients' authority", "--tls-client-ca", settings.tls_client_ca, now, None)
    yield from _jwt_keys(settings)


def _certificate(what: str, flag: str, path: Path, now: datetime, key: Path | None) -> Iterator[Finding]:
    # Only now: most servers have no certificate.
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        yield Finding(Level.ERROR, what, f"{path}: {error.strerror}", f"put it there, or change {flag}")
        return
    except ValueError:
        yield Finding(
            Level.ERROR,
            what,
            f"{path} holds no PEM certificates",
            f"write the chain there in PEM, or change {flag}",
        )
        return
    for number, certificate in enumerate(chain, 1):
        yield _term(what if number == 1 else f"{what}, no. {number}", certificate, now)
    if key is not None:
        yield from _key_of(chain[0], key)


def _term(what: str, certificate: Certificate, now: datetime) -> Finding:
    until, since = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    remedy = "renew it and write the new files in place of the old: a running server takes them up by itself"
    if now >= until:
        return Finding(Level.ERROR, what, f"expired on {_day(until)}", remedy)
    if now < since:
        return Finding(
            Level.ERROR, what, f"is not valid before {_day(since)}", "check this machine's clock, or wait"
        )
    if now >= until - SOON:
        return Finding(Level.WARNING, what, f"expires on {_day(until)}", remedy)
    return Finding(Level.OK, what, f"valid until {_day(until)}")


def _key_of(certificate: Certificate, path: Path) -> Iterator[Finding]:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError:
        return  # said where files with secrets are looked at
    except (ValueError, TypeError):
        yield Finding(
            Level.ERROR, "TLS key", f"{path} holds no PEM private key without a password", "write it there so"
        )
        return
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        yield Finding(
            Level.ERROR,
            "TLS key",
            f"{path} is not the key of the certificate",
            "write the certificate and the key of one pair; with both in one directory that is swapped, no server sees half",
        )


def _jwt_keys(settings: Settings) -> Iterator[Finding]:
    # What is at an address is not asked for: a look changes nothing and waits for nobody.
    if not settings.jwt_keys or "://" in settings.jwt_keys:
        return
    # Only now: most servers know no issuer.
    from agenttx_server.access.jwt_keys import JwtKeysRefused, parse_keys

    path = Path(settings.jwt_keys).expanduser().absolute()
    try:
        found = parse_keys(path.read_bytes())
    except OSError as error:
        yield Finding(
            Level.ERROR, "JWT keys", f"{path}: {error.strerror}", "put the JWKS there, or change --jwt-keys"
        )
    except JwtKeysRefused as refused:
        yield Finding(
            Level.ERROR,
            "JWT keys",
            f"{path}: {refused}",
            "write the issuer's JWKS there, or change --jwt-keys",
        )
    else:
        yield Finding(Level.OK, "JWT keys", f"{path}, {len(found)} key{'' if len(found) == 1 else 's'}")


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
