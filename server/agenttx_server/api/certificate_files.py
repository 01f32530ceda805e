"""Where the certificates of a server are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CertificateFiles"]


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """PEM files: the certificate and its chain, its key, and the authorities of clients' certificates, if those are asked for."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that there are."""
        return (
            (self.certificate, self.key)
            if self.client_ca is None
            else (self.certificate, self.key, self.client_ca)
        )
