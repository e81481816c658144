"""Parts of the sandbox that need no fleet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.sandbox import control, manifests, watches
from airflow_provider_multikueue.sandbox.paths import SandboxError, fleet_folder, register_folder
from airflow_provider_multikueue.sandbox.ports import claim_ports
from airflow_provider_multikueue.sandbox.services import Program, Service, log_tail
from airflow_provider_multikueue.sandbox.spec import FleetSpec, Worker
from airflow_provider_multikueue.sandbox.state import hold_folder, holder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class TestNames:
    def test_workers_are_named_as_in_the_example_and_others_after_their_region(self) -> None:
        assert Worker("us-east4").cluster == "multikueue-dws-worker-us"
        assert Worker("us-east4").context == "worker-us-east4"
        assert Worker("us-east4").secret == "worker-us-east4-secret"
        assert Worker("me-west1").cluster == "multikueue-dws-worker-me-west1"

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"regions": ()}, "at least one region"),
            ({"regions": ("us-east4", "us-east4")}, "each named once"),
            ({"regions": ("US",)}, "'US' cannot name a region"),
            ({"regions": ("manager",)}, "'manager' cannot name a region"),
            ({"kueue": "1.0"}, "no Kueue '1.0'"),
            ({"nodes": 0}, "needs a node"),
        ],
    )
    def test_what_cannot_work_is_refused_by_name(self, wrong: dict[str, Any], said: str) -> None:
        with pytest.raises(SandboxError, match=said):
            FleetSpec(**wrong)

    def test_a_kind_brings_the_kinds_that_it_is_made_of(self) -> None:
        assert FleetSpec(kinds=("trainer", "mpi")).kinds == ("jobset", "mpi", "trainer")

    def test_a_spec_survives_its_plain_form(self) -> None:
        spec = FleetSpec(name="x", regions=("us-east4",), gpus=3)
        assert FleetSpec.from_plain(json.loads(json.dumps(spec.dump()))) == spec

    @pytest.mark.parametrize("name", ["", "../x", "Upper", "a" * 41, "-a"])
    def test_a_name_that_is_no_folder_of_ours_is_refused(self, name: str) -> None:
        with pytest.raises(SandboxError, match="cannot name a sandbox"):
            fleet_folder(name)

    def test_a_folder_of_the_user_s_choice_is_found_by_name(self, tmp_path: Path) -> None:
        chosen = register_folder("mine", tmp_path / "chosen")
        assert fleet_folder("mine").resolve() == chosen
        assert chosen.stat().st_mode & 0o777 == 0o700


class TestClaims:
    def test_ports_of_another_sandbox_and_ports_in_use_are_left_alone(self) -> None:
        first = claim_ports(register_folder("one", None), 50)
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            second = claim_ports(register_folder("two", None), 50)
        assert len({*first, *second}) == 100

    def test_a_folder_is_held_by_one_process_until_it_ends(self, tmp_path: Path) -> None:
        assert holder(tmp_path) is None
        lock = hold_folder(tmp_path)
        assert holder(tmp_path) == os.getpid()
        with pytest.raises(SandboxError, match=r"runs in .* already"):
            hold_folder(tmp_path)
        os.close(lock)
        assert holder(tmp_path) is None

    def test_too_few_file_watches_are_named_with_the_remedy(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "limit").write_text("7\n")
        monkeypatch.setattr(watches, "_LIMIT", tmp_path / "limit")
        with pytest.raises(SandboxError, match=r"needs 20 inotify .* sysctl fs.inotify.max_user_instances"):
            watches.check_watches(clusters=4)


class TestControl:
    async def test_an_answer_and_an_error_both_come_back_as_what_they_are(self, tmp_path: Path) -> None:
        async def handle(operation: str, arguments: dict[str, Any]) -> Any:
            if operation == "fail":
                raise SandboxError("no such thing")
            return [operation, arguments]

        # Longer than the address of a socket may be.
        folder = tmp_path / ("long" * 20) / ("path" * 20)
        folder.mkdir(parents=True)
        async with control.serve(folder / "x.sock", handle):
            assert (folder / "x.sock").stat().st_mode & 0o777 == 0o600
            answer = await asyncio.to_thread(control.call, folder / "x.sock", "do", what={"a": 1})
            assert answer == ["do", {"what": {"a": 1}}]
            with pytest.raises(SandboxError, match="no such thing"):
                await asyncio.to_thread(control.call, folder / "x.sock", "fail")
        assert not (folder / "x.sock").exists()

    def test_a_sandbox_that_is_not_up_says_how_to_start_it(self, tmp_path: Path) -> None:
        with pytest.raises(SandboxError, match="multikueue sandbox up"):
            control.call(tmp_path / "x.sock", "do")


def program(tmp_path: Path, script: str) -> Program:
    command = [sys.executable, "-c", script]
    return Program(name="it", command=command, log=tmp_path / "it.log", folder=tmp_path / "run")


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  (what it waits for is another process)
            await asyncio.sleep(0.02)


class TestServices:
    async def test_a_program_that_ends_is_started_again(self, tmp_path: Path) -> None:
        service = Service(
            program(tmp_path, "import time; print('hi', flush=True); time.sleep(60)"), changed=lambda: None
        )
        await service.start()
        first = service.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: service.pid not in (None, first) and service.state == "running")
        await service.stop()
        assert (service.state, service.pid) == ("stopped", None)

    async def test_a_program_that_keeps_ending_is_given_up_and_its_last_words_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def no_pause(_: float) -> None: ...

        service = Service(program(tmp_path, "print('out of luck')"), changed=lambda: None)
        with monkeypatch.context() as quick:
            quick.setattr("airflow_provider_multikueue.sandbox.services.asyncio.sleep", no_pause)
            await service.start()
            async with asyncio.timeout(20):
                assert service._keeper is not None
                await service._keeper
        assert service.failed
        assert log_tail(tmp_path / "it.log") == "\n".join(["out of luck"] * 5)
        await service.stop()

    async def test_a_paused_program_stays_and_goes_on(self, tmp_path: Path) -> None:
        service = Service(program(tmp_path, "import time; time.sleep(60)"), changed=lambda: None)
        await service.start()
        state = Path(f"/proc/{service.pid}/stat")
        service.pause()
        await until(lambda: state.read_text().split()[2] == "T")
        service.resume()
        await until(lambda: state.read_text().split()[2] != "T")
        await service.stop(grace=5)

    def test_a_program_ends_with_the_process_that_started_it(self, tmp_path: Path) -> None:
        script = (
            "import asyncio, os, sys\n"
            "from pathlib import Path\n"
            "from airflow_provider_multikueue.sandbox.services import Program, Service\n"
            "async def main():\n"
            "    folder = Path(sys.argv[1])\n"
            "    program = Program(name='x', command=['sleep', '60'], log=folder / 'x.log', folder=folder)\n"
            "    service = Service(program, changed=print)\n"
            "    await service.start()\n"
            "    print(service.pid, flush=True)\n"
            "    os.kill(os.getpid(), 9)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
        )
        pid = int(done.stdout.split()[-1])
        assert done.returncode == -signal.SIGKILL
        status = Path(f"/proc/{pid}/status")
        asyncio.run(until(lambda: not status.exists() or "\nState:\tZ" in status.read_text()))


class TestManifests:
    def test_kueue_s_own_files_become_its_installation(self, tmp_path: Path) -> None:
        for path, text in FILES.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        folders = {name: tmp_path / name for name in ("kueue", "autoscaler")}
        bundle = manifests.bundle(**folders)
        definitions, others = manifests.render(bundle, url="https://127.0.0.1:1", authority=b"ca")
        (queues, _) = definitions
        assert queues["spec"]["conversion"]["webhook"]["clientConfig"]["url"] == "https://127.0.0.1:1/convert"
        assert queues["spec"]["versions"] == [{"schema": {"description": {"type": "string"}}}]
        binding, hooks = others
        assert binding["metadata"] == {"name": "kueue-rolebinding", "namespace": "kueue-system"}
        assert binding["roleRef"]["name"] == "kueue-role"
        assert hooks["metadata"]["name"] == "kueue-validating-webhook-configuration"
        (hook,) = hooks["webhooks"]  # pods are not its business here
        assert hook["clientConfig"] == {"url": "https://127.0.0.1:1/validate-job", "caBundle": "Y2E="}
        assert hook["namespaceSelector"]["matchExpressions"][0]["values"] == ["kube-system", "kueue-system"]
        assert manifests.bundle(**folders) == bundle


FILES = {
    "kueue/crd/kustomization.yaml": "patches: [{path: patches/queues.yaml}]",
    "kueue/crd/bases/queues.yaml": (
        "{kind: CustomResourceDefinition, metadata: {name: queues.x},"
        " spec: {versions: [{schema: {description: {type: string, description: long text}}}]}}"
    ),
    "kueue/crd/patches/queues.yaml": (
        "{metadata: {name: queues.x}, spec: {conversion: {webhook: {clientConfig: {service: {path: /convert}}}}}}"
    ),
    "autoscaler/requests.yaml": "{kind: CustomResourceDefinition, metadata: {name: requests.y}, spec: {}}",
    "kueue/rbac/kustomization.yaml": "resources: [binding.yaml]",
    "kueue/rbac/binding.yaml": "{metadata: {name: rolebinding, namespace: system}, roleRef: {name: role}}",
    "kueue/manager/controller_manager_config.yaml": "{kind: Configuration}",
    "kueue/webhook/kustomization.yaml": "targets: ['webhooks.[name=vjob.kb.io].namespaceSelector']",
    "kueue/webhook/manifests.yaml": """
metadata: {name: validating-webhook-configuration}
webhooks:
- {name: vjob.kb.io, clientConfig: {service: {path: /validate-job}}, rules: [{resources: [jobs]}]}
- {name: vpod.kb.io, clientConfig: {service: {path: /validate-pod}}, rules: [{resources: [pods]}]}
""",
}
