"""Nothing of ours takes the name of something that Airflow's operators have."""

import inspect

import pytest

from airflow_provider_multikueue import operators, sensors, setup_operators
from airflow_provider_multikueue._compat import BaseOperator, BaseSensorOperator, BaseTrigger

# What an operator overrides on purpose.
MEANT = {
    "execute",
    "execute_complete",
    "on_kill",
    "operator_extra_links",
    "poke",
    "render_template",
    "template_ext",
    "template_fields",
    "template_fields_renderers",
    "ui_color",
    "ui_fgcolor",
}
OPERATORS = [getattr(module, name) for module in (operators, sensors, setup_operators) for name in module.__all__]
OPERATORS = [cls for cls in OPERATORS if inspect.isclass(cls) and issubclass(cls, BaseOperator)]


def base_of(cls: type) -> type:
    return BaseSensorOperator if issubclass(cls, BaseSensorOperator) else BaseOperator


def names_of_airflow(base: type) -> set[str]:
    """Return Airflow's names: class attributes, constructor parameters, and what an instance holds."""
    instance = base(task_id="any")
    parameters = {name for cls in base.__mro__ for name in inspect.signature(cls.__init__).parameters}
    return set(dir(base)) | set(vars(instance)) | (parameters - {"self", "args", "kwargs"})


def parameters_of(cls: type) -> set[str]:
    return {
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    }


def test_there_are_operators():
    assert len(OPERATORS) == 11


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_no_parameter_shadows_one_of_airflow(cls: type):
    own = {
        parameter.name
        for parameter in inspect.signature(cls.__init__).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    # Airflow itself has ``deferrable`` on no base class; task_id and the like are passed through as keywords.
    assert not own & names_of_airflow(base_of(cls))


@pytest.mark.parametrize("cls", OPERATORS, ids=lambda cls: cls.__name__)
def test_no_attribute_shadows_one_of_airflow(cls: type):
    base = base_of(cls)
    ours = {name for owner in cls.__mro__[: cls.__mro__.index(base)] for name in vars(owner)}
    ours = {name for name in ours if not name.startswith("__") and not name.startswith("_abc_")}
    assert not (ours - MEANT) & names_of_airflow(base)


def test_the_trigger_overrides_what_it_means_to_override():
    from airflow_provider_multikueue import triggers

    for name in triggers.__all__:
        cls = getattr(triggers, name)
        if inspect.isclass(cls) and issubclass(cls, BaseTrigger):
            ours = {name for name in vars(cls) if not name.startswith("_")}
            assert ours & set(dir(BaseTrigger)) <= {"serialize", "run", "cleanup", "on_kill"}
