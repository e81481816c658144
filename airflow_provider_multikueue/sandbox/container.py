"""One container of a pod: made, started, awaited, started again, as its restart policy says."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_multikueue.sandbox.containerlog import ContainerLog
from airflow_provider_multikueue.sandbox.images import find_image, image_id, program, search_path, valid_reference
from airflow_provider_multikueue.sandbox.podenv import ConfigError, environment, expand, parse_quantity, rewrite
from airflow_provider_multikueue.sandbox.podstatus import ContainerRecord, restarts, rfc3339
from airflow_provider_multikueue.sandbox.process import Process, Processes, StartError

if TYPE_CHECKING:
    from airflow_provider_multikueue.sandbox.podenv import Place, Sources
    from airflow_provider_multikueue.sandbox.volumes import ContainerFolder, PodFolder

__all__ = ["Container", "LogUnavailable", "PodContext"]

Object = Mapping[str, Any]

RELIST_SECONDS = 1.0
"""A kubelet looks once a second which of its containers have ended, and starts none again before that."""
BACKOFF_FIRST = 10.0
BACKOFF_MOST = 300.0
BACKOFF_FORGOTTEN = 600.0
"""A run of this length makes the next restart immediate again."""
PULL_ERROR_SECONDS = 1.0
FALLBACK_BYTES, FALLBACK_LINES = 2048, 80
BASE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
EPOCH = "1970-01-01T00:00:00Z"


class LogUnavailable(Exception):  # noqa: N818 - it is an answer
    """There is no log to read yet or any more; the text is a kubelet's."""


class PodContext(Protocol):
    """What a container needs of its pod."""

    pod: dict[str, Any]
    stopping: asyncio.Event
    place: Place
    folder: PodFolder
    processes: Processes
    log_folder: Path
    path: str

    def changed(self) -> None:
        """Have the pod's status told."""

    async def sources(self) -> Sources:
        """Return the ConfigMaps and Secrets that the pod reads."""

    def warn(self, reason: str, message: str) -> None:
        """Record a warning event about the pod."""

    async def pause(self, seconds: float) -> None:
        """Return after this time, or when the pod is stopping."""


class Container:
    """Runs one container until it is over or the pod is stopping. ``record`` always tells its state."""

    def __init__(self, context: PodContext, spec: Object, policy: str) -> None:
        self.context = context
        self.name: str = spec["name"]
        self.policy = policy
        self.record = ContainerRecord(name=self.name, image=spec["image"])
        self.running = asyncio.Event()
        self.process: Process | None = None
        self._logs: dict[str, ContainerLog] = {}
        self._folder: ContainerFolder | None = None
        self._failures = 0

    @property
    def spec(self) -> Object:
        """Its part of the pod's newest specification."""
        spec = self.context.pod["spec"]
        return next(
            entry for entry in [*spec.get("initContainers", ()), *spec["containers"]] if entry["name"] == self.name
        )

    async def run(self) -> None:
        """Return when the container has ended for good, or the pod is stopping and its process is gone."""
        while not self.context.stopping.is_set():
            begun = time.monotonic()
            if await self._start():
                await self._finish()
            elif self.context.stopping.is_set():
                return
            code = self.record.state["terminated"]["exitCode"]
            if self.context.stopping.is_set() or not restarts(self.policy, code):
                return
            await self._back_off(time.monotonic() - begun)

    async def stop(self, until: Callable[[], float]) -> None:
        """End the process: SIGTERM now, SIGKILL at the time that ``until`` says, which may come nearer meanwhile."""
        process = self.process
        if process is None:
            return
        process.terminate()
        while not process.over:
            left = until() - time.monotonic()
            if left <= 0:
                process.kill()
            await process.exit_within(min(max(left, 0.05), 0.5))

    # -- starting

    async def _start(self) -> bool:
        """Start the command. False when it could not be, with the state saying so, or when the pod is stopping."""
        if not await self._pull():
            return False
        prepared = await self._prepare()
        if prepared is None:
            return False
        if self.context.stopping.is_set():
            return False
        command, env, folder = prepared
        self.record.restarts = run = self._coming_run
        record = ContainerLog(self.context.log_folder / f"{self.name}-{run}.log")
        container_id = f"containerd://{uuid.uuid4().hex}{uuid.uuid4().hex}"
        if "terminated" in self.record.state:
            self.record.last = self.record.state
        self.record.container_id = container_id
        self.record.image_id = image_id(self.spec["image"])
        self._logs = dict([*self._logs.items(), (container_id, record)][-2:])
        try:
            self.process = self.context.processes.start(
                command, env=env, folder=folder.work, record=record, memory_limit=self._memory_limit()
            )
        except StartError as error:
            record.close()
            self._terminated(128, "StartError", str(error), started=EPOCH)
            self.context.warn("Failed", f"Error: {error}")
            return False
        self.record.state = {"running": {"startedAt": rfc3339()}}
        self.running.set()
        self.context.changed()
        return True

    @property
    def _coming_run(self) -> int:
        """The number of the next run; the first is 0."""
        return self.record.restarts + bool(self.record.last or "terminated" in self.record.state)

    async def _pull(self) -> bool:
        """Return whether the image is there; wait for it, as a kubelet does, until the pod is stopping."""
        pause = BACKOFF_FIRST
        while not self.context.stopping.is_set():
            image = self.spec["image"]
            if not valid_reference(image):
                problem = f'Failed to apply default image tag "{image}": couldn\'t parse image name "{image}"'
                self._wait_for("InvalidImageName", f"{problem}: invalid reference format")
            elif find_image(image) is not None:
                return True
            elif self.spec.get("imagePullPolicy") == "Never":
                self._wait_for(
                    "ErrImageNeverPull", f'Container image "{image}" is not present with pull policy of Never'
                )
            else:
                await self._fail_pull(image)
            await self.context.pause(pause)
            pause = min(pause * 2, BACKOFF_MOST)
        return False

    async def _fail_pull(self, image: str) -> None:
        where = image if ":" in image.rpartition("/")[2] else f"{image}:latest"
        error = (
            f'failed to pull and unpack image "{where}": failed to resolve reference "{where}": {where}: not found '
            "(the sandbox runs no images, only the local programs that its table of images names)"
        )
        self._wait_for("ErrImagePull", error)
        self.context.warn("Failed", f'Failed to pull image "{image}": {error}')
        await self.context.pause(PULL_ERROR_SECONDS)
        self._wait_for("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {error}')
        self.context.warn("BackOff", f'Back-off pulling image "{image}"')

    async def _prepare(self) -> tuple[list[str], dict[str, str], ContainerFolder] | None:
        """Return command line, environment and folder; wait while they can't be made, None when the pod is stopping."""
        while not self.context.stopping.is_set():
            try:
                return await self._prepared()
            except ConfigError as error:
                self._wait_for("CreateContainerConfigError", str(error))
                self.context.warn("Failed", f"Error: {error}")
            await self.context.pause(BACKOFF_FIRST)
        return None

    async def _prepared(self) -> tuple[list[str], dict[str, str], ContainerFolder]:
        spec, context = self.spec, self.context
        image = find_image(spec["image"])
        assert image is not None  # noqa: S101 - it was there a moment ago
        folder = self._folder = context.folder.container(spec, self._coming_run)
        base = {
            "PATH": search_path(image, context.path),
            "HOSTNAME": (context.pod["spec"].get("hostname") or context.pod["metadata"]["name"])[:63],
            "HOME": str(folder.work),
            "TMPDIR": str(folder.work),
            "TERMINATION_LOG": str(folder.message_file),
        }
        env = environment(context.pod, spec, await context.sources(), context.place, base)
        command = program(
            image,
            [expand(part, env) for part in spec.get("command") or ()],
            [expand(part, env) for part in spec.get("args") or ()],
        )
        if not command:
            raise ConfigError("no command specified")
        local = {key: value if key == "PATH" else rewrite(value, folder.paths) for key, value in env.items()}
        return [rewrite(part, folder.paths) for part in command], local, folder

    def _memory_limit(self) -> int | None:
        limit = self.spec.get("resources", {}).get("limits", {}).get("memory")
        return int(parse_quantity(limit)) if limit else None

    # -- ending

    async def _finish(self) -> None:
        process = self.process
        if process is None:
            return
        code = await process.wait()
        self.process = None
        if process.oom_killed:
            code = 137
        reason = "OOMKilled" if process.oom_killed else "Completed" if code == 0 else "Error"
        self._terminated(code, reason, self._message(code))

    def _message(self, code: int) -> str:
        message = self._folder.message() if self._folder else ""
        if not message and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            last = self._logs[self.record.container_id].last(size=FALLBACK_BYTES, lines=FALLBACK_LINES)
            message = last.decode("utf-8", "replace")
        return message

    def _terminated(self, code: int, reason: str, message: str, *, started: str | None = None) -> None:
        begun = started or self.record.state.get("running", {}).get("startedAt") or rfc3339()
        ended = {
            "exitCode": code,
            "reason": reason,
            "startedAt": begun,
            "finishedAt": rfc3339(),
            "containerID": self.record.container_id,
        }
        self.record.state = {"terminated": ended | ({"message": message} if message else {})}
        self.context.changed()

    async def _back_off(self, ran: float) -> None:
        """Wait before the next start: as little as a kubelet can the first time, then 10 s and ever twice as long."""
        self._failures = 0 if ran > BACKOFF_FORGOTTEN else self._failures + 1
        if self._failures <= 1:
            await self.context.pause(RELIST_SECONDS)
            return
        pause = min(BACKOFF_FIRST * 2 ** (self._failures - 2), BACKOFF_MOST)
        meta = self.context.pod["metadata"]
        pod = f"{meta['name']}_{meta['namespace']}({meta['uid']})"
        self.record.last = self.record.state
        self._wait_for(
            "CrashLoopBackOff", f"back-off {_go_seconds(pause)} restarting failed container={self.name} pod={pod}"
        )
        self.context.warn("BackOff", f"Back-off restarting failed container {self.name} in pod {pod}")
        await self.context.pause(pause)

    def lose(self, status: Object) -> None:
        """Take over what an earlier agent told of the container, whose process is gone with that agent."""
        running = status.get("state", {}).get("running")
        self.record.restarts = status.get("restartCount", 0)
        self.record.container_id = status.get("containerID", "")
        self.record.image_id = status.get("imageID", "")
        self.record.state, self.record.last = dict(status.get("state", {})), dict(status.get("lastState", {}))
        if running:
            message = "The container could not be located when the pod was terminated"
            self._terminated(137, "ContainerStatusUnknown", message, started=running.get("startedAt"))

    # -- its log

    def log(self, *, previous: bool) -> ContainerLog:
        """Return the log of the present or last run, or with ``previous`` of the one before. Raises LogUnavailable."""
        state, last = self.record.state, self.record.last.get("terminated", {})
        where = f'container "{self.name}" in pod "{self.context.pod["metadata"]["name"]}"'
        if previous:
            chosen = last.get("containerID")
            problem = f"previous terminated {where} not found"
        elif "waiting" in state:
            chosen = last.get("containerID")
            words = {
                "ErrImagePull": "image can't be pulled",
                "ImagePullBackOff": "trying and failing to pull image",
            }
            reason = state["waiting"]["reason"]
            problem = f"{where} is waiting to start: {words.get(reason, reason)}"
        else:
            chosen = self.record.container_id
            problem = f"unable to retrieve container logs for {chosen}"
        if not chosen or chosen not in self._logs:
            raise LogUnavailable(problem)
        return self._logs[chosen]

    # -- waiting

    def _wait_for(self, reason: str, message: str) -> None:
        if "terminated" in self.record.state:
            self.record.last = self.record.state
        self.record.state = {"waiting": {"reason": reason} | ({"message": message} if message else {})}
        self.context.changed()


def _go_seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
