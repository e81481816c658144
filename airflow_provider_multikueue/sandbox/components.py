"""What the sandbox is built from: pinned Go modules, one folder of ``modules/`` with its go.mod and go.sum for each.

To add a component: pin it in a new folder of ``modules/`` with ``go mod tidy``, and describe it in ``components_for``;
if it runs a kind of job, describe that in ``job_kinds.py``.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Collection, Mapping
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
    """Programs that one Go module pins and one build makes, and folders that are copied from modules beside them.

    ``programs`` maps a program's name to its package, ``stamps`` a variable of it to the text set at link time,
    ``manifests`` the name of a copy to the module and the folder in it. ``seconds`` is how long a build from nothing
    takes on two cores.
    """

    name: str
    programs: Mapping[str, str] = field(default_factory=dict)
    stamps: Mapping[str, str] = field(default_factory=dict)
    manifests: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seconds: int

    @property
    def module(self) -> Path:
        """The folder with the pins."""
        return _MODULES / self.name

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files that a build starts from: the pins, and a program of the sandbox's own where there is one."""
        return (self.module / "go.mod", self.module / "go.sum", *sorted(self.module.glob("*.go")))

    @property
    def linker_flags(self) -> str:
        """Smaller programs without debug information, and the stamps."""
        return " ".join(["-s", "-w", *(f"-X {variable}={text}" for variable, text in sorted(self.stamps.items()))])

    @property
    def folder(self) -> Path:
        """Where the built programs are kept; another pin, flag or machine is another folder."""
        digest = hashlib.sha256(platform.machine().encode() + self.linker_flags.encode())
        for source in self.sources:
            digest.update(source.read_bytes())
        return binaries_root() / f"{self.name}-{digest.hexdigest()[:10]}"


def components_for(*, kueue: str, kinds: Collection[str] = ()) -> tuple[Component, ...]:
    """Return what a fleet with this version of Kueue and these further kinds of jobs needs, quickest build first."""
    if kueue not in KUEUE_VERSIONS:
        text = f"The sandbox has no Kueue {kueue!r}; it has {' and '.join(KUEUE_VERSIONS)}."
        raise SandboxError(text)
    further = [component for component, its_kinds in _FURTHER if its_kinds & set(kinds)]
    return (_etcd(), *further, _kueue(kueue), _kubernetes())


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
        manifests={
            "kueue": ("sigs.k8s.io/kueue", "config/components"),
            "autoscaler": ("k8s.io/autoscaler/cluster-autoscaler/apis", "config/crd"),
        },
        seconds=210,
    )


_JOBSET = Component(
    name="jobset-0.12.0",
    programs={"jobset": "sigs.k8s.io/jobset"},
    manifests={"jobset": ("sigs.k8s.io/jobset", "config/components")},
    seconds=75,
)
_TRAINING = Component(
    name="training-operator-1.9.3",
    programs={"training-operator": "sandbox/training-operator"},
    manifests={"training": ("github.com/kubeflow/training-operator", "manifests/base")},
    seconds=90,
)
_DEFINITIONS = Component(
    name="job-kinds-1",
    manifests={
        "mpi": ("github.com/kubeflow/mpi-operator", "manifests/base"),
        "trainer": ("github.com/kubeflow/trainer/v2", "manifests/base/crds"),
        "ray": ("github.com/ray-project/kuberay/ray-operator", "config/crd/bases"),
        "appwrapper": ("github.com/project-codeflare/appwrapper", "config/crd/bases"),
    },
    seconds=10,
)
_FURTHER = (
    (_DEFINITIONS, frozenset(_DEFINITIONS.manifests)),
    (_JOBSET, frozenset({"jobset"})),
    (_TRAINING, frozenset({"training"})),
)
