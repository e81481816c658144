"""What the sandbox is built from: pinned Go modules, one folder of ``modules/`` with its go.mod and go.sum for each.

To add a component (JobSet, training-operator): pin it in a new folder of ``modules/`` with ``go mod tidy``, describe it
in ``components_for``, take its objects in ``manifests.py``, start it in ``clusters.py`` and ``bringup.py``, and name
its kinds in ``objects.py``.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_provider_multikueue.sandbox.paths import SandboxError, binaries_root

__all__ = ["DEFAULT_KUEUE", "KUBERNETES_VERSION", "KUEUE_VERSIONS", "Component", "components_for"]

KUBERNETES_VERSION = "1.35.4"
KUEUE_VERSIONS = ("0.19.1", "0.17.0")
DEFAULT_KUEUE = KUEUE_VERSIONS[0]
_MODULES = Path(__file__).parent / "modules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Programs that one Go module pins and one build makes.

    ``programs`` maps a program's name to its package, ``stamps`` a variable of it to the text set at link time.
    ``seconds`` is how long a build from nothing takes on two cores.
    """

    name: str
    programs: Mapping[str, str]
    stamps: Mapping[str, str] = field(default_factory=dict)
    seconds: int
    manifests: bool = False

    @property
    def module(self) -> Path:
        """The folder with the pins."""
        return _MODULES / self.name

    @property
    def linker_flags(self) -> str:
        """Smaller programs without debug information, and the stamps."""
        return " ".join(["-s", "-w", *(f"-X {variable}={text}" for variable, text in sorted(self.stamps.items()))])

    @property
    def folder(self) -> Path:
        """Where the built programs are kept; another pin, flag or machine is another folder."""
        digest = hashlib.sha256(platform.machine().encode() + self.linker_flags.encode())
        for part in ("go.mod", "go.sum"):
            digest.update((self.module / part).read_bytes())
        return binaries_root() / f"{self.name}-{digest.hexdigest()[:10]}"


def components_for(*, kueue: str) -> tuple[Component, ...]:
    """Return what a fleet with this version of Kueue needs, quickest build first."""
    if kueue not in KUEUE_VERSIONS:
        text = f"The sandbox has no Kueue {kueue!r}; it has {' and '.join(KUEUE_VERSIONS)}."
        raise SandboxError(text)
    return (_etcd(), _kueue(kueue), _kubernetes())


def _etcd() -> Component:
    return Component(name="etcd-3.6.16", programs={"etcd": "go.etcd.io/etcd/server/v3"}, seconds=25)


def _kubernetes() -> Component:
    major, minor, _ = KUBERNETES_VERSION.split(".")
    version = "k8s.io/component-base/version"
    programs = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
    return Component(
        name=f"kubernetes-{KUBERNETES_VERSION}",
        programs={program: f"k8s.io/kubernetes/cmd/{program}" for program in programs},
        # Kueue refuses a server that does not say a proper version.
        stamps={
            f"{version}.gitVersion": f"v{KUBERNETES_VERSION}",
            f"{version}.gitMajor": major,
            f"{version}.gitMinor": minor,
        },
        seconds=225,
    )


def _kueue(version: str) -> Component:
    return Component(
        name=f"kueue-{version}",
        programs={"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        stamps={"sigs.k8s.io/kueue/pkg/version.GitVersion": f"v{version}"},
        seconds=210,
        manifests=True,
    )
