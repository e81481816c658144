"""The first process of a sandbox: starts the supervisor, and sees to it that nothing is left when that ends.

All processes of the sandbox descend from this one, and orphans among them come back to it, so that it can end each of
them: also programs that a pod's command left behind, and also when the supervisor was killed.

Started as ``python -m airflow_provider_multikueue.sandbox.guardian FOLDER [OWNER]``. The sandbox ends with the process
``OWNER``, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from airflow_provider_multikueue.sandbox.lifetime import adopt_orphans, die_with_parent
from airflow_provider_multikueue.sandbox.state import hold_folder, read_state, write_state

__all__ = ["main"]

_GRACE = 15.0


def main() -> int:
    """Go to the background, and run there until the supervisor has ended; returns its exit code."""
    folder = Path(sys.argv[1])
    owner = os.pidfd_open(int(sys.argv[2])) if len(sys.argv) > 2 else None
    claim = _go_to_background(folder)
    adopt_orphans()
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    command = [sys.executable, "-m", "airflow_provider_multikueue.sandbox.supervisor", str(folder)]
    supervisor = subprocess.Popen(command, preexec_fn=die_with_parent(os.getpid()))
    _wait(supervisor, told, owner)
    _end_descendants()
    _say_down(folder)
    os.close(claim)
    if owner is not None and select.select([owner], [], [], 0)[0]:
        _remove(folder)
    return supervisor.returncode


def _go_to_background(folder: Path) -> int:
    """Return the claim on the folder, in a new process that nobody waits for; the old one ends when it has it."""
    claimed, claim = os.pipe()
    if os.fork():
        os.close(claim)
        os._exit(0 if os.read(claimed, 1) else 1)
    os.close(claimed)
    lock = hold_folder(folder)
    os.write(claim, b"1")
    os.close(claim)
    return lock


def _wait(supervisor: subprocess.Popen[bytes], told: int, owner: int | None) -> None:
    deadline: float | None = None
    while supervisor.poll() is None:
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        sources = [told] + ([owner] if owner is not None and deadline is None else [])
        ready, _, _ = select.select(sources, [], [], timeout)
        if told in ready:
            numbers = set(os.read(told, 64))
            _reap(supervisor.pid)
        else:
            numbers = set()
        if deadline is None and (owner in ready or numbers - {signal.SIGCHLD}):
            supervisor.terminate()
            deadline = time.monotonic() + _GRACE
        if deadline is not None and time.monotonic() >= deadline:
            supervisor.kill()


def _reap(spare: int) -> None:
    """Collect ended orphans; the supervisor's own end is left to who waits for it."""
    for pid in _children():
        if pid != spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # The program's name, which may hold anything, stands in parentheses before the parent's number.
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def _end_descendants() -> None:
    """Kill children until none is left: the children of each become ours when it ends."""
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _say_down(folder: Path) -> None:
    state = read_state(folder)
    if state.get("phase") != "failed":
        write_state(folder, state | {"phase": "down"})
    for part in ("pki", "run", "kubeconfig", "connection.json"):
        path = folder / part
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Leave no folder behind of a sandbox whose owner is gone and so can't do it."""
    from airflow_provider_multikueue.sandbox.launch import forget

    if name := read_state(folder).get("spec", {}).get("name"):
        forget(name)


if __name__ == "__main__":
    sys.exit(main())
