"""Certificates and keys of one fleet: new ones at each start, readable by the owner alone."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from airflow_provider_multikueue.sandbox.files import write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

__all__ = ["Authority", "Pair", "ServerTls", "kubeconfig", "signing_key"]

_LIFE = datetime.timedelta(days=730)
_LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, PEM, and the files they were written to."""

    certificate: Path
    key: Path

    @property
    def texts(self) -> tuple[bytes, bytes]:
        """The certificate and the key."""
        return self.certificate.read_bytes(), self.key.read_bytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a server needs that lets in only clients with a certificate of ``client_authority``: PEM files."""

    certificate: Path
    key: Path
    client_authority: Path


def signing_key(path: Path) -> Path:
    """Write a new key for service-account tokens to ``path``."""
    return write_private(path, _key_text(ec.generate_private_key(ec.SECP256R1())))


class Authority:
    """A certificate authority of its own, with its certificate and key in ``folder``.

    ``classic`` makes RSA keys in the older PEM form, for the one program that reads no other.
    """

    def __init__(self, name: str, folder: Path, *, classic: bool = False) -> None:
        self._folder, self._classic = folder, classic
        self._key = self._new_key()
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(self._subject, self._key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs=True), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        self.pair = self._write("ca", builder.sign(self._key, hashes.SHA256()), self._key)

    def server(self, file: str, *, names: Sequence[str] = ()) -> Pair:
        """Issue a certificate for a server on loopback that also answers to ``names``."""
        alternatives = [_LOOPBACK, *(x509.DNSName(name) for name in ("localhost", *names))]
        return self._issue(file, alternatives[-1].value, x509.SubjectAlternativeName(alternatives), client=False)

    def client(self, file: str, user: str, *, groups: Sequence[str] = ()) -> Pair:
        """Issue a certificate that proves to be ``user`` in ``groups``."""
        return self._issue(file, user, None, client=True, groups=groups)

    def _issue(
        self,
        file: str,
        name: str,
        alternatives: x509.SubjectAlternativeName | None,
        *,
        client: bool,
        groups: Sequence[str] = (),
    ) -> Pair:
        key = self._new_key()
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        builder = self._builder(x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        both = [usage] if client else [usage, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(_key_usage(signs=False), critical=True)
        if alternatives is not None:
            builder = builder.add_extension(alternatives, critical=False)
        return self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(self, subject: x509.Name, key: CertificateIssuerPrivateKeyTypes) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + _LIFE)

    def _new_key(self) -> ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey:
        if self._classic:
            return rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return ec.generate_private_key(ec.SECP256R1())

    def _write(self, file: str, certificate: x509.Certificate, key: CertificateIssuerPrivateKeyTypes) -> Pair:
        text = certificate.public_bytes(serialization.Encoding.PEM)
        return Pair(
            certificate=write_private(self._folder / f"{file}.crt", text),
            key=write_private(self._folder / f"{file}.key", _key_text(key)),
        )


def kubeconfig(
    *, server: str, authority: Path, context: str, pair: Pair | None = None, token: str | None = None
) -> dict[str, Any]:
    """Return a kubeconfig, with everything inline, of one context for the holder of ``pair`` or ``token``."""

    def inline(content: bytes) -> str:
        return base64.b64encode(content).decode()

    user: dict[str, str] = {"token": token} if token else {}
    if pair is not None:
        certificate, key = pair.texts
        user = {"client-certificate-data": inline(certificate), "client-key-data": inline(key)}
    cluster = {"server": server, "certificate-authority-data": inline(authority.read_bytes())}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": user}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
    }


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_text(key: CertificateIssuerPrivateKeyTypes) -> bytes:
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
