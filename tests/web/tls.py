"""Certificates of the test web: an authority made at start, one good certificate and three that must be refused."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class Authority:
    """A certificate authority that lives as long as the process; its certificate goes to `folder`/ca.pem."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._now = datetime.datetime.now(datetime.UTC)
        self._certificate = (
            self._builder("test web authority", self._key.public_key(), days_ago=1, days=30)
            .issuer_name(_name("test web authority"))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True
            )
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / "ca.pem"
        self.path.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(
        self, common: str, key: ec.EllipticCurvePublicKey, *, days_ago: int, days: int
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - DAY * days_ago)
            .not_valid_after(self._now - DAY * days_ago + DAY * days)
        )

    def context(
        self, label: str, names: list[str], *, expired: bool = False, alone: bool = False
    ) -> ssl.SSLContext:
        """A server context with a fresh certificate for `names`; `alone`: signed by itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(names[0], key.public_key(), days_ago=400 if expired else 1, days=30)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        if alone:
            certificate = builder.issuer_name(_name(names[0])).sign(key, hashes.SHA256())
        else:
            issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
            builder = builder.add_extension(issuer, critical=False)
            certificate = builder.issuer_name(self._certificate.subject).sign(self._key, hashes.SHA256())
        path = self._folder / f"{label}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        path.chmod(0o600)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context


def server_context(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """The context of the TLS port, choosing by SNI, and the path of the authority's certificate."""
    authority = Authority(folder)
    by_name = {
        "tls-self-signed.test": authority.context("self", ["tls-self-signed.test"], alone=True),
        "tls-expired.test": authority.context("expired", ["tls-expired.test"], expired=True),
        "tls-wrong-name.test": authority.context("wrong", ["somebody-else.test"]),
    }
    context = authority.context("good", ["tls-good.test", "plain.test", "*.tls-good.test"])

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
        connection.context = by_name.get(name or "", context)

    context.sni_callback = choose
    return context, authority.path
