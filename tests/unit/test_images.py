"""Known images are local programs; all others do not exist."""

from __future__ import annotations

import subprocess
import sys

import pytest

from airflow_provider_multikueue.sandbox.images import (
    Image,
    find_image,
    image_id,
    parse_go_duration,
    program,
    search_path,
    valid_reference,
)

SLEEP = "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3"


def line(image: str, command: list[str] | None = None, args: list[str] | None = None) -> list[str]:
    found = find_image(image)
    assert found is not None
    return program(found, command or [], args or [])


@pytest.mark.parametrize(
    "reference",
    ["busybox", "busybox:1.36", "docker.io/library/busybox", "library/busybox:x", f"busybox@sha256:{'a' * 64}", SLEEP],
)
def test_an_image_is_found_by_any_of_its_names(reference: str) -> None:
    assert find_image(reference) is not None


@pytest.mark.parametrize("reference", ["nope", "example.com/python:3", "busybox:", "Busybox", "busy box", ""])
def test_other_images_do_not_exist(reference: str) -> None:
    assert find_image(reference) is None


def test_names_that_no_runtime_could_parse_are_told_apart() -> None:
    assert valid_reference("example.com:5000/team/image:v1")
    assert not valid_reference("Not An Image")


def test_more_images_can_be_added() -> None:
    extra = {"example.com/train": Image(entrypoint=("true",))}
    assert find_image("example.com/train:3", extra) == extra["example.com/train"]


def test_command_and_args_replace_what_the_image_says() -> None:
    assert line("busybox") == ["sh"]
    assert line("busybox", args=["ls"]) == ["ls"]
    assert line("busybox", ["sh", "-c"], ["exit 3"]) == ["sh", "-c", "exit 3"]
    assert line("bash", args=["-c", "true"]) == ["bash", "-c", "true"]


@pytest.mark.parametrize("name", ["python", "python3", "python3.12", "/usr/local/bin/python"])
def test_python_images_run_this_python(name: str) -> None:
    assert line("python:3.12-slim", [name, "-c", "1"]) == [sys.executable, "-c", "1"]


def test_python_images_find_the_interpreters_tools_first() -> None:
    image = find_image("python")
    assert image is not None
    assert search_path(image, "/bin").endswith(":/bin")


def test_the_seeds_image_sleeps_for_a_go_duration() -> None:
    assert line(SLEEP, args=["120s"]) == ["sleep", "120.000000000"]
    assert line(SLEEP) == ["sleep", "0.000000000"]


def test_the_seeds_image_refuses_other_durations_as_the_original_does() -> None:
    done = subprocess.run(line(SLEEP, args=["120"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, 'time: missing unit in duration "120"\n')


def test_the_seeds_image_knows_two_flags() -> None:
    done = subprocess.run(line(SLEEP, args=["-x", "1s"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "flag provided but not defined: -x\n")


def test_the_seeds_image_ends_as_its_flags_say() -> None:
    process = subprocess.Popen(line(SLEEP, args=["-termination-code=5", "--termination-grace-period", "1ms", "1m"]))
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
        process.terminate()
        assert process.wait(5) == 5
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("1h15m30.918s", 4530.918),
        ("1.5m", 90),
        (".5s", 0.5),
        ("2us", 2e-6),
        ("3µs", 3e-6),
        ("-1s", -1),
        ("+7ns", 7e-9),
    ],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "invalid"),
        ("x", "invalid"),
        ("-", "invalid"),
        (".s", "invalid"),
        ("10", "missing unit in"),
        ("1s2", "missing unit in"),
        ("3d", 'unknown unit "d" in'),
    ],
)
def test_what_is_no_go_duration_is_refused_in_its_words(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_go_duration(text)


def test_image_ids_are_stable_digests() -> None:
    assert image_id("busybox") == image_id("busybox") != image_id("busybox:2")
