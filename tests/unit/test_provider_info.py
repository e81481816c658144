"""The provider's metadata against both of Airflow's schemas, and against the modules that it names."""

import json
from importlib import import_module
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

from airflow_provider_multikueue._compat import AIRFLOW_2
from airflow_provider_multikueue.get_provider_info import get_provider_info

INFO = get_provider_info()
[CONNECTION] = INFO["connection-types"]


def schema(name: str) -> dict[str, Any]:
    return json.loads((Path(airflow.__path__[0]) / name).read_text())


def test_it_is_valid_for_discovery():
    jsonschema.validate(INFO, schema("provider_info.schema.json"))


@pytest.mark.skipif(AIRFLOW_2, reason="2.11 knows no form fields in the metadata")
def test_it_is_valid_for_the_stricter_schema_of_providers():
    # What a release adds to the metadata of a provider of Airflow's own, and ours does not carry.
    release = {"state": "ready", "source-date-epoch": 0, "versions": ["0.1.0"]}
    jsonschema.validate(INFO | release, schema("provider.yaml.schema.json"))


def test_the_package_name_is_the_distributions():
    assert INFO["package-name"] == distribution("airflow-provider-multikueue").metadata["Name"]


def test_airflow_discovers_it():
    from airflow.providers_manager import ProvidersManager

    assert ProvidersManager().providers["airflow-provider-multikueue"].data.items() >= INFO.items()


@pytest.mark.parametrize("kind", ["operators", "sensors", "hooks", "triggers"])
def test_the_modules_exist(kind: str):
    for entry in INFO[kind]:
        for name in entry["python-modules"]:
            import_module(name)


@pytest.mark.parametrize("path", [CONNECTION["hook-class-name"], *INFO["extra-links"]])
def test_the_classes_exist(path: str):
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(import_module(module), name), type)


def test_every_link_of_an_operator_is_registered():
    """Airflow 2.11 refuses links that the metadata does not name."""
    from airflow_provider_multikueue import links

    named = {f"{type(link).__module__}.{type(link).__name__}" for link in links.LINKS}
    assert named == set(INFO["extra-links"])


def test_the_hook_serves_the_connection_type():
    from airflow_provider_multikueue.hooks import MultiKueueHook

    assert MultiKueueHook.conn_type == CONNECTION["connection-type"]
    assert MultiKueueHook.hook_name == CONNECTION["hook-name"]


def test_secrets_are_password_fields():
    fields = CONNECTION["conn-fields"]
    passwords = {name for name, field in fields.items() if field["schema"].get("format") == "password"}
    assert passwords == {"manager_kube_config"}


def test_the_form_has_the_keys_that_the_connection_reads():
    from airflow_provider_multikueue.decisions.connection import MANAGER_KEYS

    assert set(CONNECTION["conn-fields"]) == MANAGER_KEYS


@pytest.mark.skipif(not AIRFLOW_2, reason="3.x takes the form from the metadata")
def test_airflow_2_gets_the_same_fields_from_the_hook():
    from airflow_provider_multikueue.hooks import MultiKueueHook

    assert list(MultiKueueHook.get_connection_form_widgets()) == list(CONNECTION["conn-fields"])
