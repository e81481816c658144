"""A StatsD server on loopback that remembers what it was sent."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

_LINE = re.compile(r"(?P<name>[^,:]+)(?P<tags>(,[^,:=]+=[^,:]*)*):(?P<value>-?[\d.]+)\|(?P<kind>c|ms|g)")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the protocol, with tags in the form of InfluxDB."""

    name: str
    value: float
    kind: str
    tags: dict[str, str] = field(default_factory=dict)


def parse(line: str) -> Sample:
    """Return the sample in ``line``; ValueError if it is none."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"no line of StatsD: {line!r}")
    pairs = (part.split("=", 1) for part in found["tags"].split(",") if part)
    return Sample(found["name"], float(found["value"]), found["kind"], dict(pairs))


class StatsdServer:
    """Listens for the length of a ``with`` block; ``samples`` grows from a thread."""

    def __init__(self, prefix: str) -> None:
        self.samples: list[Sample] = []
        self._prefix = prefix
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._socket.bind(("127.0.0.1", 0))
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def settings(self) -> dict[str, str]:
        """Airflow's settings, section ``metrics``, that send everything here, tags included."""
        return {
            "statsd_on": "True",
            "statsd_host": "127.0.0.1",
            "statsd_port": str(self.port),
            "statsd_prefix": "airflow",
            "statsd_influxdb_enabled": "True",
        }

    def named(self, name: str) -> list[Sample]:
        """Return the samples of one metric."""
        return [each for each in list(self.samples) if each.name == name]

    def _listen(self) -> None:
        while data := self._socket.recv(65536):
            lines = data.decode().splitlines()
            self.samples += [parse(line) for line in lines if line.startswith(self._prefix)]
