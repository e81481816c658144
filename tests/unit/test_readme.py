"""The DAG in the README is one that Airflow takes, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

from airflow_provider_multikueue._compat import AIRFLOW_2

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.skipif(AIRFLOW_2, reason="the README shows Airflow 3")
def test_the_dag_is_valid():
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(program.replace("\ntrain_anywhere()", "\ndag = train_anywhere()"), names)
    assert names["dag"].task_ids == ["train", "publish"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path):
    for target in re.findall(r"\]\(([^)]+)\)", document.read_text()):
        if not target.startswith("https://"):
            assert (document.parent / target.partition("#")[0]).exists(), target
