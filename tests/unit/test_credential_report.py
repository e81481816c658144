"""What the doctor says of credentials."""

from __future__ import annotations

import base64
import json
import time

import pytest
import yaml

from airflow_provider_multikueue.clusters.credentials import InlineKubeconfig, KubeconfigFile
from airflow_provider_multikueue.fleets.credential_report import credential_report
from tests.unit.apiserver import kubeconfig

URL = "https://api.fleet.test"


def token(**claims: float) -> str:
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{body}.signature"


def report(**user):
    return credential_report(InlineKubeconfig(config=kubeconfig(URL, **user)))


def test_a_fixed_token_that_ends_soon_is_a_warning():
    found, warnings = report(token=token(exp=time.time() + 1205))
    assert found["sort"] == "fixed token"
    assert found["expires_in_seconds"] == pytest.approx(1205, abs=5)
    assert found["renewal"].startswith("none")
    assert any("ends in 20 min" in warning for warning in warnings)


def test_a_renewed_token_is_said_to_end_but_is_no_warning(tmp_path):
    (tmp_path / "token").write_text(token(exp=time.time() + 1000))
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(URL, tokenFile=str(tmp_path / "token"))))
    found, warnings = credential_report(KubeconfigFile(path=str(tmp_path / "config")))
    assert found["expires_in_seconds"] == pytest.approx(1000, abs=5)
    assert warnings == []


# The ids are fixed, so that all processes of a parallel run collect the same tests.
@pytest.mark.parametrize(
    "text",
    ["opaque", "a.b.c", token(), token(exp=float("inf")), token(exp=time.time() + 10**6)],
    ids=["opaque", "dots", "endless", "infinite", "long"],
)
def test_other_fixed_tokens_are_none(text):
    assert report(token=text)[1] == []


def test_a_token_file_is_renewed(tmp_path):
    (tmp_path / "token").write_text(token(exp=time.time() + 3600))
    config = kubeconfig(URL, tokenFile=str(tmp_path / "token"))
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    found, warnings = credential_report(KubeconfigFile(path=str(tmp_path / "config")))
    assert (found["sort"], warnings) == ("token file", [])
    assert "read anew 1 min after" in found["renewal"]


def test_a_proxy_is_shown_without_its_password_and_lost_verification_is_a_warning():
    cluster = {"proxy-url": "http://user:secret@proxy.test:3128", "insecure-skip-tls-verify": True}
    found, warnings = report(token="opaque", cluster=cluster)
    assert found["proxy"] == "http://proxy.test:3128"
    assert "TLS is not verified" in warnings[0]
