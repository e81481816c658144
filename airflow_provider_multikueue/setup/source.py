"""Fetches Kueue's release manifests from where the fleet file says: a file, a URL, or an OCI chart through Helm."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.clusters.proxy import proxy_for
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.setup.desired import KUEUE_NAMESPACE
from airflow_provider_multikueue.setup.release import documents

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from yarl import URL

    from airflow_provider_multikueue.setup.description import FleetDescription

__all__ = ["read_fleet_file", "read_release"]

TIMEOUT: Final = 60.0
"""Seconds of silence from a server."""
HELM_TIMEOUT: Final = 120.0
SIZE_LIMIT: Final = 64 << 20
REDIRECTS: Final = 5


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
        text = await _from_url(source)
    else:
        text = await asyncio.to_thread(_from_file, fleet.where, source)
    return documents(text, where=source)


def _from_file(fleet_file: str, source: str) -> str:
    path = Path(fleet_file).parent / Path(source).expanduser()
    try:
        return _text(path.read_bytes(), str(path))
    except OSError as error:
        raise FleetConfigurationError(
            f"Kueue's manifests {path} can't be read: {error.strerror}. `kueue.manifests` is a file relative to the "
            "fleet file, an https:// URL or an oci:// chart."
        ) from error


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FleetConfigurationError(
            f"{where} is not text in UTF-8 (byte {error.start}). Give Kueue's release manifests, not packed."
        ) from error


async def _from_url(url: str) -> str:
    import ssl

    import aiohttp

    timeout = aiohttp.ClientTimeout(total=TIMEOUT * 5, sock_connect=TIMEOUT, sock_read=TIMEOUT)
    try:
        # Proxies are chosen here by the rule of all other calls; ~/.netrc is not for release pages.
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context())
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, trust_env=False) as session:
            return _text(await _fetched(session, url), url)
    except aiohttp.InvalidURL as error:
        raise FleetConfigurationError(f"{url} is not an address. Give an https:// URL.") from error
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        said = str(error) or type(error).__name__
        raise MultiKueueError(f"{url} could not be fetched: {said}. Check that this host reaches it.") from error
    except ValueError as error:  # a URL that is none; a bad certificate too is one, and was looked at above
        raise FleetConfigurationError(f"{url} is not an address: {error}. Give an https:// URL.") from error


async def _fetched(session: ClientSession, url: str) -> bytes:
    """Return what is at an address, redirects followed as far as each leads to one that can be trusted."""
    from yarl import URL

    place = URL(url)
    for _ in range(REDIRECTS + 1):
        _refuse_untrusted(place, url)
        proxy = proxy_for(str(place), os.environ)
        async with session.get(place, proxy=proxy, allow_redirects=False) as answer:
            if answer.status not in (301, 302, 303, 307, 308):
                return await _body(answer, url)
            onward = place.join(URL(answer.headers.get("Location", "")))
        if place.scheme == "https" and onward.scheme != "https":
            raise FleetConfigurationError(
                f"{url} leads on from https:// to {onward.with_query(None)}, where anybody on the way could change it, "
                "and it comes with all rights. Give the https:// address of a release's manifests.yaml."
            )
        place = onward
    raise FleetConfigurationError(f"{url} leads on more than {REDIRECTS} times. Give the address that it ends at.")


def _refuse_untrusted(place: URL, url: str) -> None:
    if place.scheme != "https" and not (place.scheme == "http" and place.host == "127.0.0.1"):
        way = "" if str(place) == url else f" (by way of {url})"
        raise FleetConfigurationError(
            f"Kueue's manifests come with all rights, so not from {place.with_query(None)}{way}: give an https:// URL."
        )


async def _body(answer: ClientResponse, url: str) -> bytes:
    if answer.status == 429 or answer.status >= 500:
        raise MultiKueueError(f"{url} answered {answer.status}. Run the same again later.")
    if answer.status != 200:
        raise FleetConfigurationError(
            f"{url} answered {answer.status}. Give the address of a release's manifests.yaml."
        )
    content = bytearray()
    async for chunk in answer.content.iter_any():
        content += chunk
        if len(content) > SIZE_LIMIT:
            raise FleetConfigurationError(
                f"{url} is larger than {SIZE_LIMIT >> 20} MiB, which no release of Kueue is. Give the address of a "
                "release's manifests.yaml."
            )
    return bytes(content)


async def _from_chart(chart: str, version: str) -> str:
    helm = shutil.which("helm")
    if helm is None:
        raise FleetConfigurationError(
            f"{chart} is a Helm chart, and there is no `helm` on this host. Install it, or give the release's "
            "manifests.yaml as a file or URL."
        )
    command = (helm, "template", "kueue", chart, "--version", version, "--namespace", KUEUE_NAMESPACE, "--include-crds")
    code, out, said = await _run(command, chart)
    if code:
        raise FleetConfigurationError(
            f"helm could not render {chart} {version}: {said.decode(errors='replace')[-500:]}"
        )
    return _text(out, f"What helm rendered of {chart}")


async def _run(command: tuple[str, ...], chart: str) -> tuple[int | None, bytes, bytes]:
    """Return exit code and output of a program, which is gone afterwards with all that it has started."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, start_new_session=True)
    try:
        async with asyncio.timeout(HELM_TIMEOUT):
            out, said = await process.communicate()
    except TimeoutError as error:
        raise MultiKueueError(
            f"helm did not render {chart} within {HELM_TIMEOUT:.0f} s. Check that this host reaches the registry, and "
            "run the same again; or give the release's manifests.yaml as a file."
        ) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return process.returncode, out, said
