"""The wheel and the sdist: what is in them, and that the wheel works where nothing else of ours is installed."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from airflow_provider_multikueue import __version__
from airflow_provider_multikueue._compat import AIRFLOW_2

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints/airflow-3.3.txt"
PACKAGE = "airflow_provider_multikueue"

pytestmark = [
    pytest.mark.skipif(AIRFLOW_2, reason="the wheel is one for both versions"),
    pytest.mark.xdist_group("distribution"),
]

IN_A_CLEAN_ENVIRONMENT = """
from airflow.providers_manager import ProvidersManager
from airflow_provider_multikueue.operators import MultiKueueJobOperator

manager = ProvidersManager()
assert "airflow-provider-multikueue" in manager.providers
assert manager.hooks["multikueue"].hook_name == "MultiKueue fleet"
MultiKueueJobOperator(task_id="train", job="kind: Job")
"""


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    return distributions / f"{PACKAGE}-{__version__}-py3-none-any.whl"


def tracked(folder: str) -> set[str]:
    return set(run("git", "ls-files", folder, cwd=ROOT).splitlines())


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert tracked(PACKAGE) <= set(names)
    assert {name.split("/")[0] for name in names} == {PACKAGE, f"{PACKAGE}-{__version__}.dist-info"}
    assert f"{PACKAGE}/py.typed" in names


def test_the_wheel_names_license_and_entry_points(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    info = f"{PACKAGE}-{__version__}.dist-info"
    assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()
    assert f"{info}/licenses/LICENSE" in archive.namelist()
    points = archive.read(f"{info}/entry_points.txt").decode()
    for group in ("console_scripts", "apache_airflow_provider", "pytest11"):
        assert f"[{group}]" in points


def test_the_sdist_has_tests_and_examples(distributions: Path):
    root = f"{PACKAGE}-{__version__}"
    with tarfile.open(distributions / f"{root}.tar.gz") as archive:
        names = set(archive.getnames())
    for path in (
        tracked(PACKAGE) | tracked("example_dags") | {"LICENSE", "README.md", "tests/unit/test_distribution.py"}
    ):
        assert f"{root}/{path}" in names


def test_the_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    uv = [sys.executable, "-m", "uv", "--quiet"]
    run(*uv, "venv", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv/bin/python"
    run(*uv, "pip", "install", "--python", python, "--constraint", CONSTRAINTS, wheel, cwd=tmp_path)
    assert run(tmp_path / "venv/bin/multikueue", "--version", cwd=tmp_path).strip() == f"multikueue {__version__}"
    run(python, "-W", "ignore", "-c", IN_A_CLEAN_ENVIRONMENT, cwd=tmp_path)
