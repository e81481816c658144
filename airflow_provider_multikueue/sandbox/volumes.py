"""Private folders for a pod, and which path of a container is which of them.

Containers are ordinary processes and see the machine's own file system. So paths that a real container would find
mounted are replaced in its command, arguments and environment by private ones: volumes' mounts and the termination log.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.podenv import ConfigError, Place, Sources, pod_field

__all__ = ["ContainerFolder", "PodFolder", "address"]

Object = Mapping[str, Any]

TERMINATION_LOG = "/dev/termination-log"
MESSAGE_LIMIT = 4096


class PodFolder:
    """The files of one pod, below one private folder that goes with it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._volumes: dict[str, Path] = {}

    def prepare(self, pod: Object, sources: Sources, place: Place) -> None:
        """Make the pod's volumes. Raises ConfigError when one needs a ConfigMap or Secret that does not exist."""
        for volume in pod["spec"].get("volumes", ()):
            self._volumes[volume["name"]] = self._volume(pod, volume, sources, place)

    def _volume(self, pod: Object, volume: Object, sources: Sources, place: Place) -> Path:
        if "hostPath" in volume:
            return Path(str(volume["hostPath"]["path"]))
        folder = self.root / "volumes" / str(volume["name"])
        folder.mkdir(parents=True, exist_ok=True)
        for path, data in _contents(pod, volume, sources, place).items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        return folder

    def container(self, spec: Object, run: int) -> ContainerFolder:
        """Return a fresh folder for one run of a container."""
        return ContainerFolder(self.root / "containers" / spec["name"] / str(run), spec, self._volumes)

    def remove(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)


class ContainerFolder:
    """The folder of one run of a container. ``paths`` maps the container's paths to the local ones."""

    def __init__(self, root: Path, spec: Object, volumes: Mapping[str, Path]) -> None:
        self.message_file = root / "termination-log"
        self.paths: dict[str, str] = {}
        root.mkdir(parents=True, exist_ok=True)
        self.message_file.write_bytes(b"")
        for mount in spec.get("volumeMounts", ()):
            if mount["name"] in volumes:
                self.paths[mount["mountPath"].rstrip("/") or "/"] = str(
                    volumes[mount["name"]] / mount.get("subPath", "")
                )
        for path in (TERMINATION_LOG, spec.get("terminationMessagePath", TERMINATION_LOG)):
            self.paths[path] = str(self.message_file)
        self.work = self._work(root / "work", spec.get("workingDir", "/"))

    def _work(self, base: Path, asked: str) -> Path:
        """Return the working directory: within a mount, or in a private tree of the same shape."""
        mount = next((path for path in self.paths if asked == path or asked.startswith(path.rstrip("/") + "/")), None)
        folder = Path(self.paths[mount] + asked[len(mount) :]) if mount else base / asked.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def message(self) -> str:
        """Return what the container left as its termination message."""
        try:
            with self.message_file.open("rb") as file:
                return file.read(MESSAGE_LIMIT).decode("utf-8", "replace")
        except OSError:
            return ""


def _contents(pod: Object, volume: Object, sources: Sources, place: Place) -> dict[str, bytes]:
    """Return the files of a volume by relative path; those of kinds that need a cloud are empty."""
    if volume.get("configMap"):
        source = volume["configMap"]
        return _projected(source, source.get("name", ""), sources.configmaps, "configmap")
    if volume.get("secret"):
        source = volume["secret"]
        return _projected(source, source["secretName"], sources.secrets, "secret")
    if volume.get("downwardAPI"):
        items = [item for item in volume["downwardAPI"].get("items", ()) if "fieldRef" in item]
        return {item["path"]: pod_field(pod, item["fieldRef"]["fieldPath"], place).encode() for item in items}
    return {}


def _projected(source: Object, name: str, objects: Mapping[str, Mapping[str, bytes]], word: str) -> dict[str, bytes]:
    data = objects.get(name)
    if data is None:
        if source.get("optional"):
            return {}
        raise ConfigError(f'{word} "{name}" not found')
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    missing = [item["key"] for item in items if item["key"] not in data]
    if missing and not source.get("optional"):
        raise ConfigError(f"references non-existent config key: {missing[0]}")
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}


def address(uid: str) -> str:
    """Return a loopback address for a pod, so that pods of a machine can listen on equal ports."""
    digest = hashlib.sha256(uid.encode()).digest()
    return f"127.{64 + digest[0] % 128}.{digest[1]}.{1 + digest[2] % 254}"
