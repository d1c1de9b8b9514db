"""Kills a run at random instants, over and over, and holds what goes on against the run that nobody killed.

A trial goes on from whatever the last one left, so the folder is one that has been killed in many times.
What must hold after each: the newest complete checkpoint verifies, the next run goes on from exactly that,
every step it logs has the losses of the run that was never killed, and the log has neither gap nor repeat.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from steppe_program import Job, clean_environment, make_recipe

STEPS = 400
_REFERENCE = 150
_COUNTED = ("trials", "inside a save", "before a checkpoint")
_SETS = (
    f"training.steps={STEPS}",
    "validation.interval=0",
    "validation.at_start=false",
    "checkpoint.interval=3",
    "logging.report_to=['jsonl']",
    # State enough that a save takes a while.
    "model.vocab_size=20011",
    "model.hidden_size=64",
)


def _figures(metrics):
    return {m["step"]: (m["loss"], m["grad_norm"], m["tokens"]) for m in metrics if "loss" in m}


@dataclass
class Trials:
    program: Path
    recipe: Path
    root: Path
    ranks: int = 2
    seed: int = 1
    counts: dict = field(
        default_factory=lambda: {"trials": 0, "inside a save": 0, "before a checkpoint": 0, "runs": 0}
    )

    def __post_init__(self):
        self.random = random.Random(self.seed)
        self.folder = self.root / "killed"
        self.expected = {}
        self.started = 0

    def _start(self, folder: Path, *sets) -> Job:
        overrides = [part for one in (f"run.folder={folder}", *_SETS, *sets) for part in ("--set", one)]
        command = [self.program, "train", self.recipe, "--ranks", self.ranks, *overrides]
        self.started += 1
        return Job(command, clean_environment(), folder, self.root / f"stderr_{self.started}")

    def reference(self, steps: int):
        """The losses of `steps` steps of the run that nobody kills; it is stopped there."""
        folder = self.root / "straight"
        job = self._start(folder, "checkpoint.interval=0", "checkpoint.first_step=false")
        for reached in range(10, steps + 10, 10):
            job.wait_for_step(min(reached, steps))
        job.end()
        self.expected = _figures(_whole_lines(folder))

    def newest(self) -> Path | None:
        """What `steppe inspect` takes for the newest complete checkpoint; it verifies all of it."""
        checkpoints = self.folder / "checkpoints"
        if not any(checkpoints.glob("step_*[0-9]")):
            return None
        found = subprocess.run(
            [self.program, "inspect", checkpoints], capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        return Path(found.stdout.splitlines()[0])

    def trial(self, inside_a_save: bool):
        before = self.newest()
        job = self._start(self.folder)
        try:
            self._kill(job, inside_a_save)
        finally:
            job.end()
        output = job.output
        went_on = re.search(r"goes on from (\S+): step (\d+)", output)
        if before is not None and f"step {STEPS}/" not in output and "parameters (" in output:
            assert went_on, f"{before} was not gone on from:\n{output}"
            assert Path(went_on[1]) == before, output
        if before is None:
            assert not went_on, output
            self.counts["before a checkpoint"] += 1
        self._check_log()
        self.counts["trials"] += 1
        self.counts["inside a save"] += any((self.folder / "checkpoints").glob("step_*.partial"))
        if max(_figures(_whole_lines(self.folder)), default=0) > len(self.expected) - 40:
            shutil.rmtree(self.folder)

    def _kill(self, job: Job, inside_a_save: bool):
        """Once it trains, after a random while; if asked, as soon as a save is under way, give or take."""
        metrics = self.folder / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        # Now and then before it trains at all.
        if self.random.random() > 0.05:
            deadline = time.monotonic() + 120
            while not (metrics.exists() and metrics.stat().st_size not in (0, size)):
                assert job.process.poll() is None, job.output
                assert time.monotonic() < deadline, job.output
                time.sleep(0.005)
            time.sleep(self.random.uniform(0, 0.3))
        if inside_a_save:
            partial = (self.folder / "checkpoints").glob
            while not any(partial("step_*.partial")) and job.process.poll() is None:
                time.sleep(0.0002)
            time.sleep(self.random.choice((0, 0, self.random.uniform(0, 0.03))))
        # One rank, or the whole job; also the job, where it has no ranks yet.
        victims = job.processes()
        ranks = [victim for victim in victims if victim != job.process.pid]
        if ranks and self.random.random() < 0.5:
            victims = [self.random.choice(ranks)]
        for victim in victims:
            try:
                os.kill(victim, 9)
            except ProcessLookupError:
                continue
        job.process.wait(timeout=300)

    def _check_log(self):
        metrics = _whole_lines(self.folder)
        steps = [m["step"] for m in metrics]
        assert steps == list(range(1, len(steps) + 1)), steps
        for step, figures in _figures(metrics).items():
            assert figures == self.expected[step], f"step {step}: {figures}, not {self.expected[step]}"


def _whole_lines(folder: Path) -> list[dict]:
    """The objects of metrics.jsonl, without a last line that the kill cut short."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run(trials: Trials, count: int, inside: int, progress=lambda done: None) -> dict:
    """`count` trials or more, until at least `inside` of them were inside a save."""
    while trials.counts["trials"] < count or trials.counts["inside a save"] < inside:
        wanted = trials.counts["inside a save"] < inside and trials.random.random() < 0.8
        trials.trial(wanted)
        progress(trials.counts)
    return trials.counts


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--inside", type=int, default=100, help="at least so many are inside a save")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        trials = Trials(options.program.resolve(), make_recipe(root), root, options.ranks, options.seed)
        trials.reference(_REFERENCE)
        counts = run(trials, options.trials, options.inside, lambda done: print(json.dumps(done), flush=True))
    print(f"all held: {counts}")


if __name__ == "__main__":
    main()
