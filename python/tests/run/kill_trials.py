"""Kills a run at random instants, over and over, and holds what goes on against the run that nobody killed.

A trial goes on from whatever the last one left, so the folder is one that has been killed in many times.
What must hold after each: whatever has the name of a checkpoint verifies, block by block; the next run goes
on from the newest of them; every step it logs has the losses of the run that was never killed, and the log
has neither gap nor repeat.
"""

import argparse
import json
import os
import platform
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
_REFERENCE = 200
_MOST_STEPS = 20  # of a trial, give or take those of a save
_SETS = (
    f"training.steps={STEPS}",
    "validation.interval=0",
    "validation.at_start=false",
    "checkpoint.interval=3",
    "checkpoint.keep=2",
    "logging.report_to=['jsonl']",
    # State enough that a save takes a while.
    "model.vocab_size=10007",
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
    record: list[dict] = field(default_factory=list)  # what happened in each

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

    def _inspect(self, path: Path) -> list[str]:
        found = subprocess.run([self.program, "inspect", path], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        return found.stdout.splitlines()

    def newest(self) -> Path | None:
        """What `steppe inspect` takes for the newest complete checkpoint. All others are whole, too."""
        checkpoints = self.folder / "checkpoints"
        named = sorted(checkpoints.glob("step_*[0-9]"))
        if not named:
            return None
        newest = Path(self._inspect(checkpoints)[0])
        for path in named:
            if path != newest:
                assert Path(self._inspect(path)[0]) == path
        return newest

    def trial(self, inside_a_save: bool):
        begun, wall_begun = time.monotonic(), time.time()
        before = self.newest()
        job = self._start(self.folder)
        try:
            victims = self._kill(job, inside_a_save)
        finally:
            job.end()
        output = job.output
        went_on = re.search(r"goes on from (\S+): step (\d+)", output)
        if before is not None and f"step {STEPS}/" not in output and "parameters (" in output:
            assert went_on, f"{before} was not gone on from:\n{output}"
            assert Path(went_on[1]) == before, output
        if before is None:
            assert not went_on, output
        logged = self._check_log()
        self.record.append(
            {
                "trial": len(self.record) + 1,
                "went_on_from": int(went_on[2]) if went_on else None,
                "killed": victims,
                "logged": logged,
                "left": self._left_since(wall_begun),
                "seconds": round(time.monotonic() - begun, 2),
            }
        )
        if logged > len(self.expected) - 2 * _MOST_STEPS:
            shutil.rmtree(self.folder)

    def _left_since(self, begun: float) -> list[str]:
        """What is neither a checkpoint nor `latest`: a save, or a removal, that this trial cut short."""
        left = sorted((self.folder / "checkpoints").glob("*.*"))
        return [path.name for path in left if path.stat().st_mtime >= begun]

    @property
    def counts(self) -> dict:
        return {
            "trials": len(self.record),
            "inside a save": sum(bool(trial["left"]) for trial in self.record),
            "one rank": sum(trial["killed"] == "one rank" for trial in self.record),
            "all ranks": sum(trial["killed"] == "all ranks" for trial in self.record),
            "before it went on": sum(trial["went_on_from"] is None for trial in self.record),
        }

    def _kill(self, job: Job, inside_a_save: bool) -> str:
        """Once it trains, after a random while; if asked, as soon as a save is under way, give or take."""
        metrics = self.folder / "metrics.jsonl"
        size = metrics.stat().st_size if metrics.exists() else 0
        # Now and then before it trains at all.
        if self.random.random() > 0.05:
            deadline = time.monotonic() + 240
            while not (metrics.exists() and metrics.stat().st_size not in (0, size)):
                assert job.process.poll() is None, job.output
                assert time.monotonic() < deadline, job.output
                time.sleep(0.005)
            # A fast machine would leave the steps that are known.
            end, steps = time.monotonic() + self.random.uniform(0, 1), self.random.randint(0, _MOST_STEPS)
            last = len(_whole_lines(self.folder)) + steps
            while time.monotonic() < end and len(_whole_lines(self.folder)) < last:
                time.sleep(0.003)
        if inside_a_save:
            partial = (self.folder / "checkpoints").glob
            while not any(partial("step_*.partial")) and job.process.poll() is None:
                time.sleep(0.0002)
            time.sleep(self.random.choice((0, 0, self.random.uniform(0, 0.03))))
        # One rank, or the whole job; also the job, where it has no ranks yet.
        victims = job.processes()
        ranks = [victim for victim in victims if victim != job.process.pid]
        one = bool(ranks) and self.random.random() < 0.5
        if one:
            victims = [self.random.choice(ranks)]
        for victim in victims:
            try:
                os.kill(victim, 9)
            except ProcessLookupError:
                continue
        job.process.wait(timeout=300)
        return "one rank" if one else "all ranks"

    def _check_log(self) -> int:
        """The last step that was logged."""
        metrics = _whole_lines(self.folder)
        steps = [m["step"] for m in metrics]
        assert steps == list(range(1, len(steps) + 1)), steps
        for step, figures in _figures(metrics).items():
            assert figures == self.expected[step], f"step {step}: {figures}, not {self.expected[step]}"
        return len(steps)


def _whole_lines(folder: Path) -> list[dict]:
    """The objects of metrics.jsonl, without a last line that the kill cut short."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run(trials: Trials, count: int, inside: int, progress=lambda trial: None) -> dict:
    """`count` trials or more, until at least `inside` of them were inside a save."""
    while trials.counts["trials"] < count or trials.counts["inside a save"] < inside:
        wanted = trials.counts["inside a save"] < inside and trials.random.random() < 0.8
        trials.trial(wanted)
        progress(trials.record[-1])
    trials.newest()  # what the last kill left is whole, too
    return trials.counts


def _machine() -> str:
    return f"{platform.machine()}, {os.cpu_count()} cores"


def _row(options, counts: dict, seconds: float) -> str:
    """A row of the table in benchmarks/results/checkpoints.md."""
    cells = [options.seed, *(counts[name] for name in ("trials", "inside a save", "one rank", "all ranks"))]
    return "| " + " | ".join(map(str, [*cells, f"{seconds / counts['trials']:.1f}"])) + " |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--inside", type=int, default=100, help="at least so many are inside a save")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write what happened in each trial to this JSON file")
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        trials = Trials(options.program.resolve(), make_recipe(root), root, options.ranks, options.seed)
        trials.reference(_REFERENCE)
        run(trials, options.trials, options.inside, lambda trial: print(json.dumps(trial), flush=True))
    seconds = time.monotonic() - begun
    if options.record:
        summary = {"machine": _machine(), "ranks": options.ranks, "seed": options.seed}
        summary |= {"seconds": round(seconds), **trials.counts, "each": trials.record}
        options.record.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"all held: {trials.counts} in {seconds:.0f} s on {_machine()}")
    print(_row(options, trials.counts, seconds))


if __name__ == "__main__":
    main()
