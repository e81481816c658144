"""Fixtures of several modules. Most modules make their servers themselves, each with its own script."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from airflow_provider_multikueue.clusters.client import Cluster
from tests.unit.apiserver import kubeconfig
from tests.unit.kubelet import Kubelet


@pytest.fixture
async def kubelet() -> AsyncIterator[Kubelet]:
    """A worker's API server with the logs of pods."""
    async with Kubelet().running() as running:
        yield running


@pytest.fixture
async def cluster(kubelet: Kubelet) -> AsyncIterator[Cluster]:
    """The client of that worker."""
    async with await Cluster.from_kubeconfig("worker-us", config=kubeconfig(kubelet.url)) as connected:
        yield connected
