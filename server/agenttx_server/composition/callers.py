"""Who may call: TLS, certificates of clients, tokens and JWTs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agenttx_server.access.authenticator import Authenticator
from agenttx_server.access.certificate_rules import CertificateRules, load_certificate_rules
from agenttx_server.access.token_verifier import TokenVerifier
from agenttx_server.api.certificate_files import CertificateFiles
from agenttx_server.composition.cannot_start import CannotStart
from agenttx_server.settings import Settings
from agenttx_server.system_ports import SystemClock

if TYPE_CHECKING:
    from agenttx_server.access.jwt_verifier import JwtVerifier

__all__ = ["authenticator_of", "certificate_of"]


def certificate_of(settings: Settings) -> CertificateFiles | None:
    """Return the server's certificate, None without TLS."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return CertificateFiles(settings.tls_certificate, settings.tls_key, settings.tls_client_ca)


async def authenticator_of(settings: Settings, tokens: TokenVerifier, clock: SystemClock) -> Authenticator:
    """Return what tells callers apart. Raises CannotStart, FileRefused."""
    certificates = None
    if settings.tls_client_ca is not None:
        file = settings.certificates_file
        certificates = CertificateRules() if file is None else load_certificate_rules(file)
    return Authenticator(
        tokens,
        allows_anonymous=settings.allows_anonymous,
        certificates=certificates,
        jwts=await _jwts(settings, clock),
    )


async def _jwts(settings: Settings, clock: SystemClock) -> JwtVerifier | None:
    if not settings.jwt_issuer:
        return None
    # Only now: most servers know no issuer.
    from agenttx_server.access.jwt_keys import JwtKeys, JwtKeysRefused, loader_of
    from agenttx_server.access.jwt_verifier import JwtRules, JwtVerifier

    keys = JwtKeys(loader_of(settings.jwt_keys), clock)
    try:
        await keys.start()
    except JwtKeysRefused as refused:
        raise CannotStart(f"--jwt-keys: {refused}") from refused
    rules = JwtRules(
        settings.jwt_issuer,
        settings.jwt_audience,
        settings.jwt_algorithms,
        settings.jwt_roles_claim,
        settings.jwt_tenant_claim,
    )
    return JwtVerifier(rules, keys, clock)
