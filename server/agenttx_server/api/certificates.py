"""The server's own certificate, read again when its files change.

gRPC asks at every handshake, on a thread of its own. What it is given is checked before: files that don't fit
together, of which one is half written or whose time is over leave the certificate of before in use, and the log says so, once a change.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agenttx_server.api.certificate_files import CertificateFiles

__all__ = ["CertificateRefused", "RotatingCertificate"]


class CertificateRefused(Exception):
    """A certificate can't be served; the message is one line."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    expires_at: datetime

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(self.key, self.certificate)], root_certificates=self.client_ca
        )


class RotatingCertificate:
    """A certificate that follows its files. Raises CertificateRefused if they are no good to begin with."""

    def __init__(self, files: CertificateFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._log = structlog.get_logger()
        self._stamp = _stamp(files)
        self._loaded = _load(files)
        self._log.info("certificate", expires_at=self._loaded.expires_at.isoformat())

    @property
    def expires_at(self) -> datetime:
        """When the certificate that is served is no good any more."""
        return self._loaded.expires_at

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that ask for the newest certificate; a client's is required where its authorities are given."""
        return grpc.dynamic_ssl_server_credentials(
            self._loaded.configuration(),
            self.changed,  # type: ignore[arg-type]  # its stubs don't know of None
            require_client_authentication=self._files.client_ca is not None,
        )

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration if there is one; None keeps the one of before. Never raises."""
        with self._lock:
            try:
                stamp = _stamp(self._files)
                if stamp == self._stamp:
                    return None
                self._stamp = stamp
                loaded = _load(self._files)
            except CertificateRefused as refused:
                self._log.error(
                    "new certificate refused, the one of before stays",
                    reason=str(refused),
                    expires_at=self._loaded.expires_at.isoformat(),
                )
                return None
            except Exception:
                self._log.exception("the certificate could not be looked at, the one of before stays")
                return None
            self._loaded = loaded
            self._log.info("certificate changed", expires_at=loaded.expires_at.isoformat())
            return loaded.configuration()


def _stamp(files: CertificateFiles) -> tuple[tuple[int, ...], ...]:
    """What changes when the files do. A file that is not there has a stamp too: it is told of once."""
    stamps: list[tuple[int, ...]] = []
    for path in files.paths:
        try:
            found = path.stat()
        except OSError:
            stamps.append((0,))
        else:
            stamps.append((found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size))
    return tuple(stamps)


def _load(files: CertificateFiles) -> _Loaded:
    certificate, key = _read(files.certificate), _read(files.key)
    client_ca = None if files.client_ca is None else _read(files.client_ca)
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
    except (ValueError, IndexError) as bad:
        raise CertificateRefused(f"{files.certificate} holds no PEM certificate") from bad
    try:
        private = load_pem_private_key(key, None)
    except (ValueError, TypeError) as bad:
        raise CertificateRefused(f"{files.key} holds no PEM private key without a passphrase") from bad
    if leaf.public_key() != private.public_key():
        raise CertificateRefused(f"the key {files.key} is not that of the certificate {files.certificate}")
    now = datetime.now(UTC)
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        raise CertificateRefused(
            f"the certificate {files.certificate} is valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%MZ} "
            f"to {leaf.not_valid_after_utc:%Y-%m-%d %H:%MZ}, and not now"
        )
    if client_ca is not None:
        try:
            x509.load_pem_x509_certificates(client_ca)
        except ValueError as bad:
            raise CertificateRefused(f"{files.client_ca} holds no PEM certificate") from bad
    return _Loaded(certificate, key, client_ca, leaf.not_valid_after_utc)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateRefused(f"{path} can't be read: {error.strerror}") from error
