"""Starts the program, waits for it, and finds whatever it left behind."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MARK = "STEPPE_TEST_JOB"
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
# Stopped by the test, however fast the machine.
LONG = ["training.steps=1000000", "validation.interval=0", "validation.at_start=false"]
# What a launcher of the tests themselves, or the user's shell, may have set.
_FOREIGN = re.compile(
    r"^(RANK|WORLD_SIZE|LOCAL_.*|MASTER_.*|TORCHELASTIC_.*|OMPI_.*|PMI_.*|PMIX_.*|SLURM_.*|PET_.*|NO_COLOR"
    r"|OMP_NUM_THREADS)$"
)


def make_recipe(folder: Path) -> Path:
    """A tiny recipe, its text prepared."""
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


def clean_environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
    return kept | {"OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in variables.items()}


def read_status(folder: Path) -> dict:
    return json.loads((folder / "status.json").read_text())


def read_metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder):
    return {m["step"]: m["loss"] for m in read_metrics(folder) if "loss" in m}


def inspect(program, *arguments):
    return subprocess.run([program, "inspect", *arguments], capture_output=True, text=True, check=False)


def wait_until(condition, what: str, limit: float = 240):
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {limit} s"
        time.sleep(0.02)


@dataclass
class Job:
    """A process and all that descends from it, told by a variable that descendants inherit."""

    arguments: list
    environment: dict
    folder: Path
    stderr_file: Path
    stderr: int | None = None  # a descriptor in place of the file
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self):
        with self.stderr_file.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(argument) for argument in self.arguments],
                env=self.environment | {_MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors if self.stderr is None else self.stderr,
                start_new_session=True,
                # A shell has its background jobs ignore SIGINT, and so do their children.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self) -> str:
        return self.stderr_file.read_text(errors="replace")

    def wait(self, limit: float = 240) -> int:
        """The exit status. Nothing may outlive the process.

        The limit is far above what a busy machine needs, and below comm.timeout, which is never waited for.
        """
        status = self.process.wait(timeout=limit)
        wait_until(lambda: not self.processes(), f"processes {self.processes()} end with their job")
        return status

    def processes(self) -> list[int]:
        wanted = f"{_MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                variables = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
                if wanted in variables.split(b"\0") and "\nState:\tZ" not in (entry / "status").read_text():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def rank(self, rank: int) -> int:
        """The process id of a rank."""
        for process in self.processes():
            variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables:
                return process
        raise AssertionError(f"no process of rank {rank} among {self.processes()}")

    def wait_for_step(self, step: int):
        def reached():
            assert self.process.poll() is None, f"ended before step {step}:\n{self.output}"
            metrics = self.folder / "metrics.jsonl"
            return metrics.exists() and f'{{"step":{step},' in metrics.read_text()

        wait_until(reached, f"step {step}")

    def end(self):
        for process in self.processes():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
