"""A tiny recipe with prepared text, and the program that trains it."""

import itertools
import os
import random
import socket
from pathlib import Path

import pytest
from steppe_program import Job, clean_environment, make_recipe

_PYTHON = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def program() -> Path:
    path = Path(os.environ.get("STEPPE_PROGRAM", _PYTHON.parent / "build/steppe")).resolve()
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not a program: build it, or set STEPPE_PROGRAM", pytrace=False)
    return path


@pytest.fixture(scope="session")
def recipe(tmp_path_factory) -> Path:
    return make_recipe(tmp_path_factory.mktemp("recipe"))


def _starter(program, recipe, root):
    numbers = itertools.count()
    jobs = []

    def start(*arguments, sets=(), launcher=(), folder=None, stderr=None, recipe=recipe, **variables) -> Job:
        """`sets`: "key=value" overrides; `launcher`: what stands before the program."""
        number = next(numbers)
        folder = folder or root / f"run_{number}"
        overrides = [part for one in (f"run.folder={folder}", *sets) for part in ("--set", one)]
        command = [*launcher, program, "train", recipe, *overrides, *arguments]
        environment = clean_environment(**variables)
        jobs.append(Job(command, environment, folder, root / f"stderr_{number}", stderr))
        return jobs[-1]

    return start, jobs


@pytest.fixture
def start(program, recipe, tmp_path):
    """Starts a job; whatever runs when the test ends is killed."""
    call, jobs = _starter(program, recipe, tmp_path)
    yield call
    for job in jobs:
        job.end()


@pytest.fixture(scope="session")
def start_once(program, recipe, tmp_path_factory):
    """As `start`, for jobs that several tests look at."""
    call, jobs = _starter(program, recipe, tmp_path_factory.mktemp("shared"))
    yield call
    for job in jobs:
        job.end()


@pytest.fixture(scope="session")
def finished(start_once):
    """Five steps of two ranks, with their checkpoints: to look at, or to copy."""
    job = start_once("--ranks", 2, sets=["checkpoint.keep=0", "checkpoint.interval=2"])
    assert job.wait() == 0, job.output
    return job


@pytest.fixture
def taken_port():
    """A port that somebody else listens on."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port():
    """Free when asked, and below what the kernel gives to outgoing connections: nobody takes it meanwhile."""
    for port in random.sample(range(20000, 32000), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            return port
    return pytest.fail("no free port")
