"""Which proxy leads to a server."""

from __future__ import annotations

import pytest

from airflow_provider_multikueue.clusters.proxy import proxy_for

PROXY = "http://proxy.test:3128"


@pytest.mark.parametrize(
    ("server", "no_proxy", "through"),
    [
        ("https://10.1.2.3", "", True),
        ("https://10.1.2.3", "10.0.0.0/8", False),
        ("https://10.1.2.3", "192.168.0.0/16, 10.1.2.3", False),
        ("https://10.1.2.3:6443", "10.1.2.3:443", True),
        ("https://10.1.2.3:6443", "10.1.2.3:6443", False),
        ("https://api.example.com", "example.com", False),
        ("https://example.com", "example.com", False),
        ("https://example.com", ".example.com", True),
        ("https://api.example.com", ".example.com", False),
        ("https://api.example.com", "*.example.com", False),
        ("https://apiexample.com", "example.com", True),
        ("https://API.Example.com", "example.COM", False),
        ("https://api.example.com:6443", "example.com:443", True),
        ("https://api.example.com", "example.com:443", False),
        ("https://api.example.com", "*", False),
        ("https://api.example.com", "10.0.0.0/8,nonsense/99,", True),
        ("https://[fd00::1]:6443", "fd00::/8", False),
        ("https://[fd00::1]:6443", "fd00::1", False),
        ("https://localhost:6443", "", False),
        ("https://127.0.0.1:6443", "", False),
        ("https://[::1]:6443", "", False),
    ],
)
def test_no_proxy_is_read_as_kubectl_reads_it(server, no_proxy, through):
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert proxy_for(server, environ) == (PROXY if through else None)


def test_each_scheme_has_its_own_variable_in_either_case():
    assert proxy_for("https://x.test", {"https_proxy": PROXY}) == PROXY
    assert proxy_for("http://x.test", {"HTTP_PROXY": PROXY}) == PROXY
    assert proxy_for("http://x.test", {"HTTPS_PROXY": PROXY}) is None
    assert proxy_for("https://x.test", {}) is None


def test_a_proxy_without_a_scheme_is_an_http_proxy():
    assert proxy_for("https://x.test", {"HTTPS_PROXY": "proxy.test:3128"}) == PROXY
