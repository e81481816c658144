"""Builds the programs of a fleet once for each user and version, and finds them afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from airflow_provider_multikueue.sandbox.components import Component, components_for
from airflow_provider_multikueue.sandbox.paths import SandboxError, binaries_root
from airflow_provider_multikueue.sandbox.toolchain import find_go, go_environment

__all__ = ["Binaries", "ensure_binaries"]

Progress = Callable[[str], None]

_MANIFESTS = "manifests"
_ROOM_GIB = 6
_UNREACHABLE = (
    "dial tcp",
    "no such host",
    "i/o timeout",
    "connection refused",
    "proxyconnect",
    "TLS handshake",
    "x509:",
)
_SAY_EVERY = 20.0


class Binaries:
    """Paths of built programs and of the manifests that go with them."""

    def __init__(self, components: Sequence[Component]) -> None:
        self._components = components

    def program(self, name: str) -> Path:
        """Return the path of the program ``name``."""
        return next(each.folder / name for each in self._components if name in each.programs)

    def manifests(self, name: str) -> Path:
        """Return the folder that was copied from a module as ``name``."""
        return next(each.folder / _MANIFESTS / name for each in self._components if name in each.manifests)


def ensure_binaries(*, kueue: str, kinds: Collection[str] = (), progress: Progress) -> Binaries:
    """Return the programs of a fleet, building those that are not there yet.

    One build runs at a time, whoever asks; the others wait for it and use what it made. A build that was cut short
    goes on where it stopped, since Go caches each compiled package.
    """
    components = components_for(kueue=kueue, kinds=kinds)
    if missing := [each for each in components if not _is_built(each)]:
        with _build_lock(progress):
            _build_all([each for each in missing if not _is_built(each)], progress)
    return Binaries(components)


def _is_built(component: Component) -> bool:
    return component.folder.is_dir()


@contextlib.contextmanager
def _build_lock(progress: Progress) -> Iterator[None]:
    binaries_root().mkdir(parents=True, exist_ok=True)
    with (binaries_root() / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("another process builds the sandbox's programs: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_all(components: Sequence[Component], progress: Progress) -> None:
    if not components:
        return
    _check_room()
    go = find_go(progress)
    minutes = sum(each.seconds for each in components) / 60
    progress(f"building {', '.join(each.name for each in components)}: once, about {minutes:.0f} min on two cores")
    for component in components:
        _build(component, go, progress)


def _check_room() -> None:
    free = shutil.disk_usage(binaries_root()).free / 2**30
    if free < _ROOM_GIB:
        text = (
            f"The first build needs {_ROOM_GIB} GiB in the user's cache and has {free:.1f} GiB at {binaries_root()}. "
            "Free some room, or set XDG_CACHE_HOME, GOCACHE and GOMODCACHE to a larger disk."
        )
        raise SandboxError(text)


def _build(component: Component, go: Path, progress: Progress) -> None:
    partial = component.folder.with_name(f"{component.folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    work = partial / "module"
    work.mkdir(parents=True)
    for source in component.sources:
        shutil.copyfile(source, work / source.name)
    started = time.monotonic()
    if component.programs:
        _compile(component, go, work, progress)
    for name, (module, folder) in component.manifests.items():
        source = _module(component, go, work, module) / folder
        shutil.copytree(source, partial / _MANIFESTS / name, copy_function=shutil.copyfile)
    shutil.rmtree(work)
    partial.rename(component.folder)
    progress(f"built {component.name} in {time.monotonic() - started:.0f} s")


def _compile(component: Component, go: Path, work: Path, progress: Progress) -> None:
    log = work.parent / "build.log"
    command = [str(go), "build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath"]
    command += ["-ldflags", component.linker_flags, "-o", f"{work.parent}/", *component.programs.values()]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=work, env=go_environment(go), stdout=sink, stderr=sink)
    with _terminated(process):
        _watch(process, log, component, progress)
    if process.returncode:
        raise SandboxError(_explain(component, log))
    for program, package in component.programs.items():
        (work.parent / _default_name(package)).rename(work.parent / program)


def _default_name(package: str) -> str:
    parts = package.split("/")
    return parts[-2] if re.fullmatch(r"v\d+", parts[-1]) else parts[-1]


@contextlib.contextmanager
def _terminated(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def _watch(process: subprocess.Popen[bytes], log: Path, component: Component, progress: Progress) -> None:
    started = said = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
            return
        now = time.monotonic()
        if now - said >= _SAY_EVERY:
            said = now
            lines = log.read_bytes().splitlines()
            fetched = sum(line.startswith(b"go: downloading") for line in lines)
            left = max(component.seconds - (now - started), 0)
            hint = f"about {left:.0f} s left" if left else "longer than usual"
            progress(f"{component.name}: {fetched} modules fetched, {len(lines) - fetched} packages compiled, {hint}")


def _explain(component: Component, log: Path) -> str:
    text = log.read_text(errors="replace")
    tail = "\n".join(text.splitlines()[-12:])
    if "no space left on device" in text:
        remedy = "The disk is full. Free some room, or set XDG_CACHE_HOME, GOCACHE, GOMODCACHE and GOTMPDIR."
    elif any(mark in text for mark in _UNREACHABLE):
        remedy = "No Go module proxy was reachable. Set GOPROXY (HTTPS_PROXY, SSL_CERT_FILE) and run again."
    else:
        remedy = "Run again; what was compiled so far is kept. The whole output is in " + str(log)
    return f"Building {component.name} failed:\n{tail}\n{remedy}"


def _module(component: Component, go: Path, work: Path, module: str) -> Path:
    """Return the folder of a pinned module, which is fetched if nothing that was compiled needed it."""
    command = [str(go), "mod", "download", "-json", module]
    log = work.parent / "build.log"
    with log.open("ab") as sink:
        done = subprocess.run(
            command, cwd=work, env=go_environment(go), stdout=subprocess.PIPE, stderr=sink, text=True, check=False
        )
        sink.write(done.stdout.encode())
    if done.returncode:
        raise SandboxError(_explain(component, log))
    return Path(json.loads(done.stdout)["Dir"])
