"""One manifest of each kind of job, as small as its controller allows; each pod runs the script of its role."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

RESULT = 'printf \'{"role":"%s"}\' > /dev/termination-log'
"""A script that writes which role it is of as its result."""


def template(script: str, *, container: str = "main", restart: str = "Never") -> Object:
    """Return a pod template whose container runs ``script`` and wants a GPU."""
    resources = {"requests": {"cpu": "10m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
    command = ["bash", "-c", script]
    body = {"name": container, "image": "busybox:1", "command": command, "resources": resources}
    return {"spec": {"restartPolicy": restart, "terminationGracePeriodSeconds": 1, "containers": [body]}}


def _manifest(api_version: str, kind: str, spec: Object) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"generateName": "t-"}, "spec": spec}


def batch_job(script: str, **spec: Any) -> Object:
    return _manifest("batch/v1", "Job", {"backoffLimit": 0, "template": template(script)} | spec)


def jobset(roles: dict[str, tuple[int, str]], **spec: Any) -> Object:
    """Return a JobSet with a replicated job of so many pods for each role."""
    jobs = [
        {
            "name": role,
            "replicas": 1,
            "template": {
                "spec": {"parallelism": count, "completions": count, "backoffLimit": 0, "template": template(script)}
            },
        }
        for role, (count, script) in roles.items()
    ]
    return _manifest("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs} | spec)


_SPECS = {
    "PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
    "TFJob": ("tfReplicaSpecs", "tensorflow"),
    "PaddleJob": ("paddleReplicaSpecs", "paddle"),
    "XGBoostJob": ("xgbReplicaSpecs", "xgboost"),
    "JAXJob": ("jaxReplicaSpecs", "jax"),
}


def kubeflow(kind: str, roles: dict[str, tuple[int, str]], **policy: Any) -> Object:
    """Return a job of the training operator with so many replicas of each role, such as ``Master``."""
    specs, container = _SPECS[kind]
    replicas = {
        role: {"replicas": count, "restartPolicy": "Never", "template": template(script, container=container)}
        for role, (count, script) in roles.items()
    }
    return _manifest("kubeflow.org/v1", kind, {"runPolicy": {"backoffLimit": 0} | policy, specs: replicas})


def mpi(launcher: str, worker: str, *, workers: int = 2, **policy: Any) -> Object:
    replicas = {
        "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": template(launcher)},
        "Worker": {"replicas": workers, "restartPolicy": "Never", "template": template(worker)},
    }
    spec = {"slotsPerWorker": 1, "runPolicy": {"backoffLimit": 0} | policy, "mpiReplicaSpecs": replicas}
    return _manifest("kubeflow.org/v2beta1", "MPIJob", spec)


def ray(submitter: str, head: str, worker: str, *, workers: int = 2, **spec: Any) -> Object:
    group = {
        "groupName": "workers",
        "replicas": workers,
        "minReplicas": workers,
        "maxReplicas": workers,
        "rayStartParams": {},
        "template": template(worker),
    }
    cluster = {
        "headGroupSpec": {"rayStartParams": {}, "template": template(head)},
        "workerGroupSpecs": [group],
    }
    base = {
        "entrypoint": "python main.py",
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster,
        "submitterPodTemplate": template(submitter),
    }
    return _manifest("ray.io/v1", "RayJob", base | spec)


def train(script: str, *, nodes: int = 2, runtime: str = "plain", **spec: Any) -> Object:
    """Return a TrainJob; its pods come from the TrainingRuntime of this name, with this script for its nodes."""
    resources = {"requests": {"cpu": "10m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
    trainer = {"numNodes": nodes, "command": ["bash", "-c", script], "resourcesPerNode": resources}
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": runtime}
    return _manifest("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": reference, "trainer": trainer} | spec)


def app_wrapper(*components: Object) -> Object:
    """Return an AppWrapper of whole objects; each needs a name of its own."""
    return _manifest(
        "workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": each} for each in components]}
    )


def pod(script: str) -> Object:
    return _manifest("v1", "Pod", template(script)["spec"])
