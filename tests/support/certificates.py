"""Certificates for tests: an authority of our own, and leaves that are good, for another name, expired, or alone."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority whose root lies in `ca_file`."""

    directory: Path
    ca_file: Path
    _key: ec.EllipticCurvePrivateKey
    _root: x509.Certificate

    @classmethod
    def create(cls, directory: Path) -> Authority:
        """A new authority that writes its files to `directory`."""
        key = ec.generate_private_key(ec.SECP256R1())
        root = _certificate(
            "Test Root", key, issuer=None, issuer_key=key, names=(), days=(-1, 30), is_ca=True
        )
        ca_file = directory / "ca.pem"
        ca_file.write_bytes(root.public_bytes(serialization.Encoding.PEM))
        return cls(directory, ca_file, key, root)

    def server_context(
        self, *names: str, days: tuple[int, int] = (-1, 30), self_signed: bool = False
    ) -> ssl.SSLContext:
        """A server context with a leaf for these names, valid between these days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        leaf = _certificate(
            names[0],
            key,
            issuer=None if self_signed else self._root,
            issuer_key=key if self_signed else self._key,
            names=names,
            days=days,
            is_ca=False,
        )
        pem = self.directory / f"{names[0].replace(':', '_')}-{days[1]}-{self_signed}.pem"
        pem.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + leaf.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        return context


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
    names: tuple[str, ...],
    days: tuple[int, int],
    is_ca: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject if issuer is not None else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
    )
    if is_ca:
        # RFC 5280, 4.2.1.3: what a strict verifier, Python 3.13's own among them, wants an authority to say.
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(signs, critical=True)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA256())


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
