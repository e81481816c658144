"""A container as a local process group: started, listened to, measured, killed."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_multikueue.sandbox.leash import Leash, end_marked

if TYPE_CHECKING:
    from airflow_provider_multikueue.sandbox.containerlog import ContainerLog

__all__ = ["Process", "Processes", "StartError"]

PIPE_CHUNK = 64 * 1024
STRAY_SECONDS = 0.3
"""How long the log's pipe may stay open after a container's end before we look for processes that left its group."""
MEMORY_SECONDS = 0.1
MEMORY_SHARE = 0.04
"""The share of one core that looking at memory may take."""
PAGE = os.sysconf("SC_PAGE_SIZE")
AGENT_MARK, CONTAINER_MARK = "MULTIKUEUE_SANDBOX_AGENT", "MULTIKUEUE_SANDBOX_CONTAINER"


class StartError(Exception):
    """A command that cannot be started; the text is a container runtime's."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
            f"runc create failed: unable to start container process: error during container init: {detail}"
        )


class Process:
    """One run of a container's command. It leads a session and a process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes], pipe: int, record: ContainerLog, mark: str) -> None:
        self.pid = popen.pid
        self.oom_killed = False
        self._popen = popen
        self._log = record
        self._mark = mark
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._finishing: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] = self._loop.create_future()
        self._pipe = pipe
        self._pidfd = os.pidfd_open(popen.pid)
        self._loop.add_reader(self._pipe, self._on_output)
        self._loop.add_reader(self._pidfd, self._on_exit)

    def _on_output(self) -> None:
        try:
            data = os.read(self._pipe, PIPE_CHUNK)
        except BlockingIOError:
            return
        if data:
            self._log.write(data)
        else:
            self._close_pipe()

    def _close_pipe(self) -> None:
        if not self._drained.done():
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._drained.set_result(None)

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.kill()  # as when the first process of a container ends; its group's number is ours until it is reaped
        self._popen.wait()
        os.close(self._pidfd)
        self._pidfd = -1
        self._exited.set_result(None)
        self._finishing = self._loop.create_task(self._finish())

    async def wait(self) -> int:
        """Return the exit code (128 + signal when killed) once command and children are gone and the log is whole."""
        return await asyncio.shield(self._ended)

    async def _finish(self) -> None:
        """Read the rest of the log, however nobody may be waiting for it, and close it."""
        try:
            await asyncio.wait_for(asyncio.shield(self._drained), STRAY_SECONDS)
        except TimeoutError:
            await asyncio.to_thread(end_marked, CONTAINER_MARK, self._mark)
            await asyncio.wait({self._drained}, timeout=STRAY_SECONDS)
            self._close_pipe()
        self._log.close()
        code = self._popen.returncode
        self._ended.set_result(128 - code if code < 0 else code)

    @property
    def over(self) -> bool:
        """Whether the command has ended; the log may still lack its last lines."""
        return self._exited.done()

    async def exit_within(self, seconds: float) -> None:
        """Return when the command has ended, or after this time."""
        await asyncio.wait({self._exited}, timeout=seconds)

    def terminate(self) -> None:
        """Send SIGTERM to the command itself, as a container runtime does."""
        if self._pidfd >= 0:
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the whole group."""
        if self._pidfd >= 0:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return


class Processes:
    """All containers' processes of one node agent: starts them, watches their memory, lets none outlive the agent."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._count = 0
        self._alive: dict[int, Process] = {}
        self._limits: dict[int, int] = {}
        self._leash = Leash(AGENT_MARK, self._mark)

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        folder: Path,
        record: ContainerLog,
        memory_limit: int | None = None,
    ) -> Process:
        """Return the started command, whose outputs both go to ``record``. Raises StartError when there is none."""
        self._count += 1
        mark = f"{self._mark}-{self._count}"
        env = {**env, AGENT_MARK: self._mark, CONTAINER_MARK: mark}
        path = _find(command[0], env.get("PATH", ""), folder)
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read_end, False)
        try:
            popen = subprocess.Popen(
                list(command),
                executable=path,
                env=env,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            os.close(read_end)
            raise StartError(_reason(command[0], error)) from error
        finally:
            os.close(write_end)
        process = Process(popen, read_end, record, mark)
        self._alive[popen.pid] = process
        if memory_limit:
            self._limits[popen.pid] = memory_limit
        process._exited.add_done_callback(lambda _: self._forget(popen.pid))  # noqa: SLF001 - the same module's own
        return process

    def _forget(self, pid: int) -> None:
        self._alive.pop(pid, None)
        self._limits.pop(pid, None)

    async def watch_memory(self) -> None:
        """Kill each group that uses more memory than its limit, for as long as this runs."""
        while True:
            begun = time.perf_counter()
            if self._limits:
                self._check_memory()
            await asyncio.sleep(max(MEMORY_SECONDS, (time.perf_counter() - begun) / MEMORY_SHARE))

    def _check_memory(self) -> None:
        members = _sessions(self._limits)
        for session, processes in members.items():
            limit = self._limits[session]
            if sum(size for _, size in processes) <= limit:
                continue
            # Pages shared by several processes were counted several times: ask more exactly before killing.
            if sum(_proportional_size(pid) for pid, _ in processes) > limit:
                self._alive[session].oom_killed = True
                self._alive[session].kill()

    def close(self) -> None:
        """Kill everything that was started here."""
        for process in self._alive.values():
            process.kill()
        self._leash.release()


def _find(name: str, path: str, folder: Path) -> str:
    """Return the program's file, looked up in the container's PATH rather than ours."""
    if "/" in name:
        return str(folder / name)
    for part in path.split(":"):
        candidate = Path(part or ".") / name
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    raise StartError(f'exec: "{name}": executable file not found in $PATH')


def _reason(name: str, error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return f'exec: "{name}": {error}'
    words = {
        errno.ENOENT: f'exec: "{name}": stat {name}: no such file or directory',
        errno.EACCES: f'exec: "{name}": permission denied',
        errno.ENOEXEC: f'exec: "{name}": exec format error',
        errno.E2BIG: f'exec: "{name}": argument list too long',
    }
    return words.get(error.errno or 0, f'exec: "{name}": {(error.strerror or str(error)).lower()}')


def _sessions(wanted: Mapping[int, object]) -> dict[int, list[tuple[int, int]]]:
    """Return (process, resident bytes) of all processes in the wanted sessions, from one pass over /proc."""
    found: dict[int, list[tuple[int, int]]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - ten times a second, and a Path for each would be the dearest part
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123 - as above
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:
            continue
        session = int(fields[3])
        if session in wanted:
            found.setdefault(session, []).append((int(name), int(fields[21]) * PAGE))
    return found


def _proportional_size(pid: int) -> int:
    """Return the bytes that the process has for itself plus its part of what it shares; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss_Anon:"))
