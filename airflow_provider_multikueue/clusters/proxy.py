"""Which proxy leads to a server, by the rules that kubectl follows."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

__all__ = ["is_loopback", "proxy_for"]


def proxy_for(server: str, environ: Mapping[str, str]) -> str | None:
    """Return the proxy for ``server`` from HTTPS_PROXY, HTTP_PROXY and NO_PROXY (hosts, suffixes, ports, CIDR, ``*``).

    Loopback never goes through a proxy.
    """
    url = urlsplit(server)
    names = ("HTTPS_PROXY", "https_proxy") if url.scheme == "https" else ("HTTP_PROXY", "http_proxy")
    proxy = next((environ[name] for name in names if environ.get(name)), None)
    if proxy is None or url.hostname is None:
        return None
    port = url.port or (443 if url.scheme == "https" else 80)
    excluded = (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(",")
    if is_loopback(url.hostname) or any(_matches(url.hostname, port, rule.strip()) for rule in excluded):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Return whether what is sent to ``host`` stays on this machine."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _matches(host: str, port: int, rule: str) -> bool:
    """Return whether one entry of NO_PROXY covers the host."""
    if not rule:
        return False
    if rule == "*":
        return True
    address = _address(host)
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    if address is None or _address(rule) is None:
        rule, _, wanted = rule.rpartition(":") if rule.rpartition(":")[2].isdigit() else (rule, "", "")
        if wanted and int(wanted) != port:
            return False
    if address is not None:
        return _address(rule) == address
    suffix = rule.lower().removeprefix("*").lstrip(".")
    host = host.lower().rstrip(".")
    return host.endswith(f".{suffix}") or (host == suffix and not rule.startswith((".", "*")))
