"""TLS as a kubeconfig asks for it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_multikueue.clusters.kubeconfig import configuration_error

__all__ = ["Settings", "context", "proxy_context"]

log = logging.getLogger(__name__)

_warned: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Whom to trust and what to show; PEM."""

    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = field(default=None, repr=False)
    verify: bool = True

    def fingerprint(self, *more: object) -> str:
        """Return a text that is equal as long as connections made with these settings can be kept."""
        digest = hashlib.sha256(repr((self.verify, more)).encode())
        for content in (self.authority, self.certificate, self.key):
            digest.update(b"-" if content is None else hashlib.sha256(content).digest())
        return digest.hexdigest()


def context(settings: Settings, server: str) -> ssl.SSLContext:
    """Return the context for connections to ``server``; without an authority, the system's are trusted.

    Raises FleetConfigurationError when a certificate or key cannot be used.
    """
    try:
        made = ssl.create_default_context(cadata=_text(settings.authority))
        if settings.certificate:
            with _files(settings.certificate, settings.key) as (certificate, key):
                made.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, TypeError, ValueError, OSError) as error:  # TypeError: no ASCII
        raise configuration_error(
            f"The certificates for {server} cannot be used: {getattr(error, 'reason', None) or type(error).__name__}.",
            "They must be PEM, and the key must be the certificate's, without a passphrase.",
        ) from error
    # Clusters' own certificates rarely have the extensions that Python asks for since 3.13.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not settings.verify:
        _warn_once(server)
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def proxy_context(settings: Settings) -> ssl.SSLContext:
    """Return the context for connections to a proxy at ``https://``, whose certificate is always verified.

    The system's authorities are trusted, and as kubectl does, the cluster's. It is shown no client certificate.
    """
    made = ssl.create_default_context()
    if settings.authority:
        made.load_verify_locations(cadata=_text(settings.authority))
    return made


def _warn_once(server: str) -> None:
    """Warn of what the kubeconfig of ``server`` gives up: once, though its credentials are loaded again and again."""
    if server not in _warned:
        _warned.add(server)
        log.warning("TLS is not verified for %s, as its kubeconfig says: who is in between can read the token.", server)


def _text(authority: bytes | None) -> str | None:
    return authority.decode("ascii", "replace") if authority else None


@contextlib.contextmanager
def _files(certificate: bytes, key: bytes | None) -> Iterator[tuple[Path, Path | None]]:
    """Write what OpenSSL takes only from files into a private folder, for as long as it reads them."""
    with tempfile.TemporaryDirectory(prefix="multikueue-") as name:
        folder = Path(name)
        (folder / "certificate").write_bytes(certificate)
        if key is None:
            yield folder / "certificate", None
            return
        (folder / "key").touch(mode=0o600)
        (folder / "key").write_bytes(key)
        yield folder / "certificate", folder / "key"
