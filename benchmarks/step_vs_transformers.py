"""Tokens per second of a training step, beside transformers at its fastest.

One recipe (recipes/peers_17m.toml), the same starting weights, the same seeded tokens, the same number of
threads. The sides live in processes of their own and take turns step by step, so that whatever else the
machine does hits both. transformers runs with sdpa attention, fused AdamW, and both of its expert
implementations; the faster one counts. Without recomputation, and with it (against its gradient
checkpointing).

    ./dev bench step_vs_transformers [--samples N] [--threads N]
"""

import argparse
import array
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# First losses come from the same weights and tokens: any difference beyond rounding is a bug, not a speed.
LOSS_TOLERANCE = 1e-4
IMPLEMENTATIONS = ("eager", "grouped_mm")


class Side:
    """A child process that makes a step when asked to."""

    def __init__(self, name: str, command: list[str], threads: int):
        self.name = name
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.start = self._answer()
        if self.start["threads"] != threads:
            raise SystemExit(f"{name} runs {self.start['threads']} threads, not {threads}")

    def step(self) -> dict:
        self.process.stdin.write("step\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}; its message is above")
        return json.loads(line)


def peers_python() -> str:
    python = os.environ.get("STEPPE_PEERS_PYTHON", "")
    if not python or not Path(python).exists():
        raise SystemExit(
            "STEPPE_PEERS_PYTHON must name the Python of an environment with what is in "
            f"benchmarks/peers/requirements.txt (./dev bench makes one); it is {python!r}"
        )
    return python


def find_program(build: Path) -> Path:
    subprocess.run(["cmake", "--build", str(build), "--target", "steppe_side"], check=True, stdout=sys.stderr)
    found = [path for path in build.rglob("steppe_side") if path.is_file()]
    if not found:
        raise SystemExit(f"the build in {build} made no program steppe_side")
    return found[0]


def write_tokens(path: Path, vocab_size: int, length: int, num_rows: int) -> None:
    generator = random.Random(20260)
    tokens = array.array("i", (generator.randrange(vocab_size) for _ in range(num_rows * (length + 1))))
    path.write_bytes(tokens.tobytes())


def take_turns(sides: list[Side], warm_up: int, samples: int) -> dict[str, list[float]]:
    first = [side.step()["loss"] for side in sides]
    if max(first) - min(first) > LOSS_TOLERANCE:
        losses = ", ".join(f"{side.name} {loss:.6f}" for side, loss in zip(sides, first, strict=True))
        raise SystemExit(f"the sides do not train the same thing: first losses {losses}")
    for _ in range(warm_up - 1):
        for side in sides:
            side.step()
    seconds = {side.name: [] for side in sides}
    for sample in range(samples):
        for side in sides:
            seconds[side.name].append(side.step()["seconds"])
        print(f"  sample {sample + 1} of {samples}", end="\r", file=sys.stderr, flush=True)
    return seconds


def compare(recomputes: bool, arguments: argparse.Namespace, program: Path, folder: Path) -> dict:
    """One comparison: our step and transformers' with each expert implementation, in turns."""
    tokens, weights = folder / "tokens.bin", folder / "weights"
    sides = []
    try:
        for implementation in IMPLEMENTATIONS:
            script = ROOT / "benchmarks" / "transformers" / "transformers_side.py"
            command = [
                peers_python(),
                str(script),
                "--recipe",
                str(arguments.recipe),
                "--tokens",
                str(tokens),
            ]
            command += ["--weights", str(weights), "--experts", implementation]
            command += ["--gradient-checkpointing"] if recomputes else []
            sides.append(Side(f"transformers, {implementation}", command, arguments.threads))
        mode = f"activation_checkpoint.mode={'full' if recomputes else 'none'}"
        command = [str(program), str(arguments.recipe), str(tokens), str(weights), mode]
        sides.append(Side("steppe", command, arguments.threads))
        if len({side.start["parameters"] for side in sides}) != 1:
            raise SystemExit(f"the models differ in size: {[side.start['parameters'] for side in sides]}")
        seconds = take_turns(sides, arguments.warm_up, arguments.samples)
    finally:
        for side in sides:
            side.close()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    peer = min((name for name in medians if name != "steppe"), key=medians.get)
    return {
        "recomputes": recomputes,
        "parameters": sides[0].start["parameters"],
        "seconds": seconds,
        "tokens_per_s": {name: arguments.tokens_per_step / value for name, value in medians.items()},
        "fastest_peer": peer,
        "speedup": medians[peer] / medians["steppe"],
    }


def machine() -> dict:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = named[0] if named else platform.machine()
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "system": platform.platform(),
    }


def git_commit(*options: str) -> str:
    """What is checked out; `options` are those of `git rev-parse`."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True
        ).stdout

    dirty = git("status", "--porcelain", "--untracked-files=no").strip()
    return git("rev-parse", *options, "HEAD").strip() + (" with changes" if dirty else "")


def versions() -> dict:
    script = "import json, torch, transformers as t; print(json.dumps([torch.__version__, t.__version__]))"
    out = subprocess.run([peers_python(), "-c", script], check=True, capture_output=True, text=True).stdout
    return dict(zip(("torch", "transformers"), json.loads(out), strict=True))


def report(result: dict) -> str:
    lines = [
        "# A training step beside transformers",
        "",
        f"{result['comparisons'][0]['parameters'] / 1e6:.1f}M parameters ({result['recipe']}), "
        f"{result['tokens_per_step']} tokens a step, fp32, {result['threads']} threads. Medians of "
        f"{result['samples']} steps of each side, in turns, in tokens per second.",
        "",
        "| recomputation | "
        + " | ".join(result["comparisons"][0]["tokens_per_s"])
        + " | steppe ÷ faster peer |",
        "|---|" + "---|" * (len(result["comparisons"][0]["tokens_per_s"]) + 1),
    ]
    for comparison in result["comparisons"]:
        rates = " | ".join(f"{rate:,.0f}" for rate in comparison["tokens_per_s"].values())
        kind = "full" if comparison["recomputes"] else "none"
        lines.append(f"| {kind} | {rates} | {comparison['speedup']:.2f}× |")
    host = result["machine"]
    lines += [
        "",
        f"Machine: {host['cpu']}, {host['cores']} cores, load {host['load_average']:.2f} before the run. "
        f"Commit {result['commit']}. torch {result['versions']['torch']}, "
        f"transformers {result['versions']['transformers']}.",
        "",
        f"    {result['command']}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "peers_17m.toml")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the report")
    arguments = parser.parse_args()
    recipe = tomllib.loads(arguments.recipe.read_text())
    length = recipe["training"]["seq_length"]
    arguments.tokens_per_step = length
    host = machine()
    program = find_program(arguments.build)
    comparisons = []
    with tempfile.TemporaryDirectory(prefix="steppe-bench-") as name:
        write_tokens(Path(name) / "tokens.bin", recipe["model"]["vocab_size"], length, num_rows=8)
        for recomputes in (False, True):
            comparisons.append(compare(recomputes, arguments, program, Path(name)))
            print(json.dumps(comparisons[-1]), flush=True)
    result = {
        "recipe": os.path.relpath(arguments.recipe, ROOT),
        "tokens_per_step": length,
        "threads": arguments.threads,
        "samples": arguments.samples,
        "machine": host,
        "versions": versions(),
        "commit": git_commit(),
        "command": shlex.join(["./dev", "bench", Path(__file__).stem, *sys.argv[1:]]),
        "comparisons": comparisons,
    }
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / "step_vs_transformers.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.results / "step_vs_transformers.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
