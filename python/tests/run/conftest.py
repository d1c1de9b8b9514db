"""A tiny recipe with prepared text, and the program that trains it."""

import itertools
import os
import random
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from steppe_program import Job, clean_environment

_PYTHON = Path(__file__).parents[2]
_RECIPE = """
[model]
num_hidden_layers = 2
hidden_size = 32
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 8
vocab_size = 257
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 16
compute_dtype = "float32"

[optimizer]
lr = 0.01

[training]
steps = 5
seq_length = 64
global_batch_size = 4

[data]
prepared = "{prepared}"
tokenizer = "bytes"
val_split = 0.1

[[data.train]]
path = "{text}"

[validation]
interval = 2
"""


@pytest.fixture(scope="session")
def program() -> Path:
    path = Path(os.environ.get("STEPPE_PROGRAM", _PYTHON.parent / "build/steppe")).resolve()
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not a program: build it, or set STEPPE_PROGRAM", pytrace=False)
    return path


@pytest.fixture(scope="session")
def recipe(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    text = folder / "text"
    text.mkdir()
    rng = random.Random(1)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "home"]
    for document in range(40):
        count = rng.randint(20, 80)
        (text / f"{document}.txt").write_text(" ".join(rng.choice(words) for _ in range(count)))
    path = folder / "tiny.toml"
    path.write_text(_RECIPE.format(prepared=folder / "prepared", text=text))
    subprocess.run(
        [sys.executable, "-m", "steppe.data", "prepare", path, "--processes", "1"],
        env=os.environ | {"PYTHONPATH": str(_PYTHON)},
        check=True,
        capture_output=True,
    )
    return path


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


@pytest.fixture
def taken_port():
    """A port that somebody else listens on."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port():
    """Free when asked; nobody else of the tests runs meanwhile."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]
