"""What the operator makes of its arguments before it acts."""

from __future__ import annotations

from kubernetes.client import V1Container, V1Job, V1JobSpec, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec

from airflow_provider_multikueue.operators import MultiKueueJobOperator


def test_what_is_inside_a_client_model_is_rendered():
    container = V1Container(name="main", image="{{ params.image }}", args=["{{ ds }}"])
    template = V1PodTemplateSpec(spec=V1PodSpec(containers=[container], restart_policy="Never"))
    model = V1Job(metadata=V1ObjectMeta(generate_name="train-"), spec=V1JobSpec(template=template, backoff_limit=0))
    operator = MultiKueueJobOperator(task_id="train", job=model)
    operator.render_template_fields({"params": {"image": "python:3.12"}, "ds": "2026-03-01"})  # type: ignore[arg-type]
    job = operator.job
    assert job["spec"]["template"]["spec"]["containers"] == [
        {"name": "main", "image": "python:3.12", "args": ["2026-03-01"]}
    ]


def test_a_client_model_is_rendered_as_it_is_given():
    model = V1Job(metadata=V1ObjectMeta(name="{{ ds }}"))
    operator = MultiKueueJobOperator(task_id="train", job=model)
    operator.render_template_fields({"ds": "2026-03-01"})  # type: ignore[arg-type]
    assert operator.job == {"metadata": {"name": "2026-03-01"}}
