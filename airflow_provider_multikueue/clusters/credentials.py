"""Where a cluster is and how to prove who we are there.

A *source* knows one way to get at an API server (a kubeconfig file, an inline kubeconfig, the pod we run in). Its
``load`` reads everything anew and returns an `Access`; it blocks, runs exec plugins, and so belongs in a thread.
Reading anew is all there is to renewal: rotated files, exec plugins and service-account tokens take the same way.

To add a way (an Airflow connection, a GKE cluster by its resource name): write a class with ``describe`` and ``load``.

Plain entries of a kubeconfig are taken as they are; its auth providers are left to kubernetes_asyncio. The rest of that
library's loader is not used: it runs plugins without a time limit, renews short tokens at every look, keeps keys in
temporary files for the life of the process and quotes users' entries in its errors.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_multikueue.clusters import exec_plugin, tls
from airflow_provider_multikueue.clusters.expiry import end_of_certificate, end_of_token, renew_at
from airflow_provider_multikueue.clusters.kubeconfig import USER_TEXTS, configuration_error, read_file, select
from airflow_provider_multikueue.clusters.proxy import is_loopback, proxy_for
from airflow_provider_multikueue.decisions.secret_texts import secret_leaves

if TYPE_CHECKING:
    import ssl

__all__ = ["Access", "InCluster", "InlineKubeconfig", "KubeconfigFile", "Source", "access_for"]

AUTH_PROVIDER_TIMEOUT = 45.0
CREDENTIALS = ("exec", "auth-provider", *USER_TEXTS)
"""A user's keys that prove who it is."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """All that a request needs besides its path."""

    server: str
    authorization: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(repr=False)
    tls_server_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    proxy_tls: ssl.SSLContext | None = field(default=None, repr=False)
    """Only for a proxy that is itself reached by TLS."""
    expires: float | None = None
    """Epoch seconds at which the credentials end, where that is known."""
    ends: Mapping[str, float] = field(default_factory=dict)
    """Epoch seconds at which each part of the credentials ends, by its name, where that is known."""
    renew_at: float | None = None
    """Epoch seconds at which to load again, before anything ends."""
    fingerprint: str = ""
    """Equal as long as open connections can be kept."""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    """The texts that must appear in no log."""


class Source(Protocol):
    """One way to get at an API server."""

    def describe(self) -> str:
        """Return in words where the access comes from, without secrets."""
        ...

    def load(self) -> Access:
        """Return fresh access; blocks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigFile:
    """A context of a kubeconfig on this host's disk; the only form whose plugins are run."""

    path: str
    context: str | None = None
    key: str = "kube_config_path"
    """The connection's key that holds the path, for error texts."""

    def describe(self) -> str:
        """Return the path and the context."""
        return f"kubeconfig {self.path}" + (f", context {self.context}" if self.context else "")

    def load(self) -> Access:
        """Read the file, run its exec plugin if it has one."""
        merged = read_file(self.path, key=self.key)
        return access_for(*select(merged, self.context, where=self.describe()))


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineKubeconfig:
    """A kubeconfig that came with the connection: data, so nothing in it may run code or read files."""

    config: dict[str, Any] = field(repr=False)
    context: str | None = None
    key: str = "manager_kube_config"

    def describe(self) -> str:
        """Return the key that the text came from."""
        return f"inline kubeconfig ({self.key})" + (f", context {self.context}" if self.context else "")

    def load(self) -> Access:
        """Check that the configuration is plain data and use it."""
        return access_for(*select(self.config, self.context, where=self.describe(), inline=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class InCluster:
    """The service account of the pod that we run in."""

    folder: Path = SERVICE_ACCOUNT

    def describe(self) -> str:
        """Return that it is the pod's own account."""
        return "the service account of this pod"

    def load(self) -> Access:
        """Return access with the mounted token and certificate."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
        token, authority = self.folder / "token", self.folder / "ca.crt"
        if not (host and port and token.is_file() and authority.is_file()):
            raise configuration_error(
                "The connection says that this process runs inside the cluster, but there is no service account here.",
                "Run the worker and the triggerer as pods of that cluster, or give a kubeconfig instead.",
            )
        host = f"[{host}]" if ":" in host else host
        cluster = {"server": f"https://{host}:{port}", "certificate-authority": str(authority)}
        return access_for(cluster, {"tokenFile": str(token)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
    """What shows who we are: a header, a certificate or both."""

    authorization: str | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    expires: float | None = None
    reread: bool = False


def access_for(cluster: Mapping[str, Any], user: Mapping[str, Any], *, expires: float | None = None) -> Access:
    """Return access for a cluster and a user in a kubeconfig's words; ``expires`` where the user's entry is a token."""
    server, proxy = _way(cluster, user)
    proof = _proof(cluster, user)
    if expires is not None:
        proof = replace(proof, expires=expires)
    ends = dict(_ends(proof))
    settings = tls.Settings(
        authority=_content(cluster, "certificate-authority"),
        certificate=proof.certificate,
        key=proof.key,
        verify=cluster.get("insecure-skip-tls-verify") is not True,
    )
    return Access(
        server=server,
        authorization=proof.authorization,
        tls=tls.context(settings, server) if server.startswith("https") else None,
        tls_server_name=cluster.get("tls-server-name"),
        proxy=proxy,
        proxy_tls=tls.proxy_context(settings) if proxy and proxy.startswith("https") else None,
        expires=proof.expires,
        ends=ends,
        renew_at=renew_at(ends.values(), reread=proof.reread),
        fingerprint=settings.fingerprint(server, cluster.get("tls-server-name"), proxy),
        secrets=frozenset(_secrets({"proxy-url": proxy}, user, proof)),
    )


def _way(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the server's address and the proxy that leads there; credentials go over TLS, or stay on this host."""
    server = str(cluster["server"]).rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise configuration_error(f"{server!r} is not the address of an API server.", "It must begin with https://.")
    try:
        url = urlsplit(server)
        proxy = cluster.get("proxy-url") or proxy_for(server, os.environ)
        here = all(is_loopback(urlsplit(each).hostname or "") for each in (server, proxy) if each)
    except ValueError:
        raise configuration_error(
            f"{server!r} is not the address of an API server.", "Write it as host:port."
        ) from None
    if proxy and not str(proxy).startswith(("http://", "https://")):
        raise configuration_error(
            f"The proxy of {server} is not an HTTP proxy.", "Only http:// and https:// proxies are supported."
        )
    if url.scheme == "http" and not here and (url.username or any(map(user.get, CREDENTIALS))):
        raise configuration_error(
            f"The kubeconfig has credentials for http://{url.hostname}: whoever is in between could read them.",
            "Write the server's https:// address; plain http is taken on loopback and without credentials only.",
        )
    return server, proxy


def _secrets(cluster: Mapping[str, Any], user: Mapping[str, Any], proof: _Proof) -> Iterator[str]:
    """Yield what was given as a secret, and what was made of it."""
    yield from secret_leaves([cluster, {key: value for key, value in user.items() if key != "exec"}])
    if proof.authorization:
        yield proof.authorization.partition(" ")[2]
    if proof.key:
        yield proof.key.decode("ascii", "replace")


def _ends(proof: _Proof) -> Iterator[tuple[str, float]]:
    """Yield the name and the end of each part that says when it ends, or of which that was said."""
    token = proof.expires if proof.expires is not None else end_of_token(proof.authorization)
    if token is not None:
        yield "token", token
    certificate = end_of_certificate(proof.certificate) if proof.certificate else None
    if certificate is not None:
        yield "client certificate", certificate


def _proof(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> _Proof:
    """Return the user's credentials; a certificate goes with any of them."""
    certificate, key = _content(user, "client-certificate"), _content(user, "client-key")
    if "auth-provider" in user:
        return _Proof(authorization=_from_auth_provider(cluster, user), reread=True)
    if user.get("exec") is not None:
        given = exec_plugin.run(user["exec"], cluster)
        return _Proof(
            authorization=f"Bearer {given.token}" if given.token else None,
            certificate=given.certificate.encode() if given.certificate else certificate,
            key=given.key.encode() if given.key else key,
            expires=given.expires,
        )
    if user.get("tokenFile"):
        return _Proof(
            authorization=f"Bearer {_token(str(user['tokenFile']))}", certificate=certificate, key=key, reread=True
        )
    return _Proof(authorization=_plain(user), certificate=certificate, key=key)


def _plain(user: Mapping[str, Any]) -> str | None:
    if user.get("token"):
        return f"Bearer {user['token']}"
    if user.get("username") and "password" in user:
        pair = f"{user['username']}:{user['password']}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return None


def _token(path: str) -> str:
    token = _read(path, "tokenFile").decode("utf-8", "replace").strip()
    if not token:
        raise configuration_error(f"The token file {path} is empty.", "Wait until it is written, or check its mount.")
    return token


def _content(section: Mapping[str, Any], key: str) -> bytes | None:
    """Return the content that ``key-data`` holds or ``key`` names."""
    data = section.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(str(data).encode(), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            raise configuration_error(
                f"The kubeconfig's `{key}-data` is not base64.", "Copy it again, whole."
            ) from None
    return _read(str(section[key]), key) if section.get(key) else None


def _read(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        raise configuration_error(
            f"The file {path!r} that the kubeconfig names as `{key}` cannot be read: "
            f"{getattr(error, 'strerror', None) or error}.",
            "The worker and the triggerer both need it, readable by Airflow's user.",
        ) from error


def _from_auth_provider(cluster: Mapping[str, Any], user: Mapping[str, Any]) -> str | None:
    """Return the header of a legacy auth provider (gcp, oidc), as kubernetes_asyncio gets it."""
    from kubernetes_asyncio.client import Configuration
    from kubernetes_asyncio.config import load_kube_config_from_dict

    config = {
        "current-context": "chosen",
        "contexts": [{"name": "chosen", "context": {"cluster": "chosen", "user": "chosen"}}],
        "clusters": [{"name": "chosen", "cluster": {"server": cluster["server"]}}],
        "users": [{"name": "chosen", "user": {"auth-provider": user["auth-provider"]}}],
    }
    configuration = Configuration()
    try:
        loading = load_kube_config_from_dict(config, client_configuration=configuration)
        asyncio.run(asyncio.wait_for(loading, AUTH_PROVIDER_TIMEOUT))
    except Exception as error:
        raise configuration_error(
            f"The kubeconfig's auth provider gave no token ({type(error).__name__}).",
            "Auth providers are obsolete: write the kubeconfig anew with the cloud's own tool.",
        ) from error
    header = configuration.api_key.get("BearerToken")
    return str(header) if header else None
