"""Where Kueue's manifests come from: a file beside the fleet file, a URL, an OCI chart by way of Helm."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.setup.description import FleetDescription, parse
from airflow_provider_multikueue.setup.source import read_release
from tests.unit.test_setup import EXAMPLE, manifests

CHART = "oci://registry.k8s.io/kueue/charts/kueue"
HELM = """#!/bin/sh
echo "$@" >"$(dirname "$0")/asked"
if [ "$6" != "--namespace" ]; then echo "unknown command" >&2; exit 2; fi
case "$3" in *missing*) echo "Error: $3: not found" >&2; exit 1 ;; esac
cat "$(dirname "$0")/rendered"
"""


@pytest.fixture
def helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `helm` that renders what is in a file, and notes how it was called."""
    program = tmp_path / "bin/helm"
    program.parent.mkdir()
    program.write_text(HELM)
    program.chmod(0o755)
    (program.parent / "rendered").write_text(text())
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files in the test's folder."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *_: object) -> None:
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def text() -> str:
    return "\n---\n".join(map(json.dumps, manifests()))


def described(source: str, where: Path = EXAMPLE) -> FleetDescription:
    content = yaml.safe_load(EXAMPLE.read_text())
    content["kueue"]["manifests"] = source
    return replace(parse(content, where=str(where)), project="team")


async def test_a_chart_is_rendered_at_the_fleets_version_with_its_definitions(helm: Path):
    found = await read_release(described(CHART))
    assert [each["kind"] for each in found] == ["Deployment", "ConfigMap"]
    asked = (helm.parent / "asked").read_text().split()
    assert asked == ["template", "kueue", CHART, "--version", "0.19.1", "--namespace", "kueue-system", "--include-crds"]


async def test_what_helm_says_of_a_chart_is_passed_on(helm: Path):
    with pytest.raises(FleetConfigurationError, match=r"helm could not render .*missing.*not found"):
        await read_release(described("oci://registry.k8s.io/missing"))


async def test_a_chart_without_helm_says_what_else_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetConfigurationError, match="there is no `helm` on this host"):
        await read_release(described(CHART))


async def test_a_file_is_relative_to_the_fleet_file(tmp_path: Path):
    (tmp_path / "kueue.yaml").write_text(text())
    assert len(await read_release(described("kueue.yaml", tmp_path / "fleet.yaml"))) == 2
    with pytest.raises(FleetConfigurationError, match=r"other\.yaml can't be read"):
        await read_release(described("other.yaml", tmp_path / "fleet.yaml"))


async def test_a_url_is_fetched_and_what_is_no_release_is_refused(tmp_path: Path, folder: str):
    (tmp_path / "kueue.yaml").write_text(text())
    (tmp_path / "page.yaml").write_text("<html>sign in</html>")
    assert len(await read_release(described(f"{folder}/kueue.yaml"))) == 2
    with pytest.raises(FleetConfigurationError, match="answered 404"):
        await read_release(described(f"{folder}/none.yaml"))
    with pytest.raises(FleetConfigurationError, match="does not hold Kubernetes objects"):
        await read_release(described(f"{folder}/page.yaml"))
    with pytest.raises(FleetConfigurationError, match="give an https:// URL"):
        await read_release(described("http://example.com/kueue.yaml"))


async def test_a_server_that_is_not_there_can_be_tried_again():
    with pytest.raises(MultiKueueError, match="could not be fetched") as raised:
        await read_release(described("http://127.0.0.1:1/kueue.yaml"))
    assert not isinstance(raised.value, FleetConfigurationError)
