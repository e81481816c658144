"""The provider's metrics arrive at a real StatsD or OpenTelemetry server through Airflow's own clients."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from airflow_provider_multikueue.logs.sinks import DirectSink
from airflow_provider_multikueue.logs.text import Levels, blocks
from airflow_provider_multikueue.metrics import reporting
from airflow_provider_multikueue.tally import Measure, tally
from tests.statsd import Sample, StatsdServer

# What Airflow's task process does as it starts (2.11 does it by itself); then all that the tests look at, since each
# start of an Airflow costs seconds.
SCRIPT = """
import asyncio, logging
from airflow_provider_multikueue._compat import AIRFLOW_2
if not AIRFLOW_2:
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils
    stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)

from airflow_provider_multikueue.metrics import emit, reporting
from airflow_provider_multikueue.tally import Measure, tally

logging.basicConfig()
tags = {"namespace": "default", "queue": "dws-local-queue", "region": "us-east4"}
emit([Measure("multikueue.admissions", 1, tags), Measure("multikueue.admission_wait", 4.4, tags, unit="seconds")])
emit([Measure("multikueue.admissions", float("nan"))])

async def main():
    with reporting():
        with reporting():
            tally.add("multikueue.log_lines", 5)
        tally.add("multikueue.log_lines", 2)
        tally.add("multikueue.watch_reconnects", fleet_cluster="manager")

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the script sent and wrote."""

    samples: list[Sample]
    output: str


@pytest.fixture(scope="module")
def sent() -> Sent:
    """Run the script in a process whose Airflow sends its metrics to a server here."""
    with StatsdServer("airflow.multikueue.") as server:
        output = run(SCRIPT, server.settings)
    return Sent(server.samples, output)


def run(script: str, settings: Mapping[str, str]) -> str:
    """Run a script in a process whose Airflow has these settings for metrics; return what it wrote."""
    environment = {f"AIRFLOW__METRICS__{name.upper()}": value for name, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_counts_and_times_arrive_with_their_tags(sent: Sent) -> None:
    tags = {"namespace": "default", "queue": "dws-local-queue", "region": "us-east4"}
    assert sent.samples[:2] == [
        Sample("airflow.multikueue.admissions", 1, "c", tags),
        Sample("airflow.multikueue.admission_wait", 4400, "ms", tags),
    ]


def test_what_cannot_be_sent_is_told_and_fails_nothing(sent: Sent) -> None:
    assert "metrics could not be sent" in sent.output
    assert len(sent.samples) == 4


def test_what_is_tallied_is_sent_once_when_the_last_fleet_closes(sent: Sent) -> None:
    assert sent.samples[2:] == [
        Sample("airflow.multikueue.log_lines", 7, "c"),
        Sample("airflow.multikueue.watch_reconnects", 1, "c", {"fleet_cluster": "manager"}),
    ]


def test_opentelemetry_carries_the_same_names_and_tags() -> None:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        settings = {"OTEL_ON": "True", "OTEL_HOST": "127.0.0.1", "OTEL_PORT": str(server.server_port)}
        flush = "from opentelemetry.metrics import get_meter_provider; get_meter_provider().force_flush()"
        run(f"{SCRIPT}\n{flush}", settings)
        server.shutdown()

    found = {}
    for body in bodies:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
                points = getattr(metric, metric.WhichOneof("data")).data_points
                found[metric.name] = [{tag.key: tag.value.string_value for tag in each.attributes} for each in points]
    tags = {"namespace": "default", "queue": "dws-local-queue", "region": "us-east4"}
    assert found["airflow.multikueue.admissions"] == [tags]
    assert found["airflow.multikueue.admission_wait"] == [tags]
    assert found["airflow.multikueue.watch_reconnects"] == [{"fleet_cluster": "manager"}]


async def test_no_reporter_is_left_when_nothing_is_open() -> None:
    before = asyncio.all_tasks()
    with reporting():
        assert asyncio.all_tasks() - before
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_each_line_on_its_way_to_a_log_is_counted() -> None:
    class Nowhere:
        def record(self, level: int, text: str) -> None:
            assert level >= logging.INFO

    tally.take()
    lines = [(f"2026-01-02T03:04:0{i}.000000000Z", f"line {i}", True) for i in range(3)]
    for block in blocks(lines, Levels()):  # type: ignore[arg-type]
        DirectSink(Nowhere()).lines("pod", block)
    assert tally.take() == [Measure("multikueue.log_lines", 3, {})]
