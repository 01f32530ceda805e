"""An authority for tests, and certificates of it.

authority = Authority()
files = authority.issue(directory, "server", dns=["localhost"], addresses=["127.0.0.1"])
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

__all__ = ["Authority", "Issued"]

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Issued:
    """The files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, name: str = "AgentTx tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        built = _builder(self._name, self._name, self._key.public_key(), DAY)
        built = built.add_extension(constraints, critical=True)
        self._certificate = built.sign(self._key, hashes.SHA256())

    def write(self, path: Path) -> Path:
        """Write the authority's own certificate."""
        path.write_bytes(self._certificate.public_bytes(Encoding.PEM))
        return path

    def issue(
        self,
        directory: Path,
        name: str,
        *,
        dns: Sequence[str] = (),
        uris: Sequence[str] = (),
        addresses: Sequence[str] = (),
        good_for: timedelta = DAY,
    ) -> Issued:
        """Write ``NAME.pem`` and ``NAME.key``; of before there is nothing left."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [
            *map(x509.DNSName, dns),
            *map(x509.UniformResourceIdentifier, uris),
            *(x509.IPAddress(ipaddress.ip_address(address)) for address in addresses),
        ]
        built = _builder(_named(name), self._name, key.public_key(), good_for)
        built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
        issued = Issued(directory / f"{name}.pem", directory / f"{name}.key")
        issued.certificate.write_bytes(built.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        issued.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return issued


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, good_for: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * DAY)
        .not_valid_after(now + good_for)
    )
