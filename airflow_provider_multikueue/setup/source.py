"""Fetches Kueue's release manifests from where the fleet file says: a file, a URL, or an OCI chart through Helm."""

from __future__ import annotations

import asyncio
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.setup.desired import KUEUE_NAMESPACE
from airflow_provider_multikueue.setup.release import documents

if TYPE_CHECKING:
    from airflow_provider_multikueue.setup.description import FleetDescription

__all__ = ["read_fleet_file", "read_release"]

TIMEOUT: Final = 60.0
SIZE_LIMIT: Final = 64 << 20


def read_fleet_file(path: Path) -> FleetDescription:
    """Return the fleet that a YAML file describes; FleetConfigurationError when it can't be read or is wrong."""
    import yaml

    from airflow_provider_multikueue.setup.description import parse

    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise FleetConfigurationError(f"The fleet file {path} can't be read: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FleetConfigurationError(f"The fleet file {path} is not YAML: {' '.join(str(error).split())}.") from error
    return parse(content, where=str(path))


async def read_release(fleet: FleetDescription) -> list[dict[str, Any]]:
    """Return the objects of the release that the fleet file names.

    Raises FleetConfigurationError when there is nothing of the kind, MultiKueueError when it could not be fetched now.
    """
    source = fleet.kueue.manifests or ""
    if source.startswith("oci://"):
        text = await _from_chart(source, fleet.kueue.version or "")
    elif source.startswith(("https://", "http://")):
        text = await asyncio.to_thread(_from_url, source)
    else:
        text = await asyncio.to_thread(_from_file, fleet.where, source)
    return documents(text, where=source)


def _from_file(fleet_file: str, source: str) -> str:
    path = Path(fleet_file).parent / Path(source).expanduser()
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise FleetConfigurationError(
            f"Kueue's manifests {path} can't be read: {error.strerror}. `kueue.manifests` is a file relative to the "
            "fleet file, an https:// URL or an oci:// chart."
        ) from error


def _from_url(url: str) -> str:
    if not url.startswith("https://") and not url.startswith("http://127.0.0.1:"):
        raise FleetConfigurationError(
            f"Kueue's manifests come with all rights, so not from {url}: give an https:// URL."
        )
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - the scheme was looked at
            return str(answer.read(SIZE_LIMIT).decode("utf-8"))
    except urllib.error.HTTPError as error:
        raise FleetConfigurationError(
            f"{url} answered {error.code}. Give the address of a release's manifests.yaml."
        ) from error
    except OSError as error:
        raise MultiKueueError(f"{url} could not be fetched: {error}. Check that this host reaches it.") from error


async def _from_chart(chart: str, version: str) -> str:
    helm = shutil.which("helm")
    if helm is None:
        raise FleetConfigurationError(
            f"{chart} is a Helm chart, and there is no `helm` on this host. Install it, or give the release's "
            "manifests.yaml as a file or URL."
        )
    command = (helm, "template", "kueue", chart, "--version", version, "--namespace", KUEUE_NAMESPACE, "--include-crds")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await asyncio.wait_for(process.communicate(), TIMEOUT * 2)
    if process.returncode:
        raise FleetConfigurationError(
            f"helm could not render {chart} {version}: {said.decode(errors='replace')[-500:]}"
        )
    return out.decode()
