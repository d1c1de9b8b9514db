"""Two ranks of one thread against one rank of two threads: what the exchanges cost.

The same model (recipes/peers_17m.toml), the same data and global batch, of sequences of 1,024 tokens: a
small batch, where the sums of gradients and weights over the ranks weigh most, and a larger one in
micro-batches. Runs of `steppe train` take turns; medians of the tokens per second in metrics.jsonl, the
first two steps of a run left out.

    ./dev bench ranks_vs_threads [--turns N] [--steps N]
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from step_vs_transformers import RESULTS, ROOT, git_commit

LAYOUTS = {
    "1 rank, 2 threads": ["--ranks", "1", "--set", "hardware.threads_per_rank=2"],
    "2 ranks, dense sharded": ["--ranks", "2"],
    "2 ranks, experts and vocabulary shared out": [
        "--ranks", "2",
        "--set", "parallelism.expert_parallel_degree=2",
        "--set", "parallelism.vocab_parallel_degree=2",
    ],
}  # fmt: skip


BATCHES = (2, 8)  # sequences a step


def run(arguments: list[str], folder: Path, data: Path, steps: int, batch: int) -> list[float]:
    settings = {
        "run.folder": folder,
        "data.prepared": data,
        "training.steps": steps,
        "training.seq_length": 1024,
        "training.global_batch_size": batch,
        "logging.report_to": '["jsonl"]',
        "checkpoint.interval": 0,
        "checkpoint.first_step": "false",
    }
    command = [str(ROOT / "build" / "steppe"), "train", str(ROOT / "recipes" / "peers_17m.toml"), *arguments]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["tokens_per_s"] for line in lines][2:]


def report(samples: dict[int, dict[str, list[float]]]) -> str:
    rows = []
    for batch, of_layout in samples.items():
        medians = {name: statistics.median(values) for name, values in of_layout.items()}
        base = medians["1 rank, 2 threads"]
        rows += [
            f"| {batch} | {name} | {value:,.0f} | {value / base:.2f}× |" for name, value in medians.items()
        ]
    return "\n".join(
        [
            "# Two ranks against two threads",
            "",
            "recipes/peers_17m.toml, fp32, sequences of 1,024 tokens, nothing recomputed. Medians, runs in "
            "turns, tokens per second.",
            "",
            "| sequences a step | layout | tokens/s | against one rank |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f} at the end. Commit {git_commit()}.",
            "",
            "    ./dev bench ranks_vs_threads",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    samples = {batch: {name: [] for name in LAYOUTS} for batch in BATCHES}
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "data"
        prepare = [
            "-m",
            "steppe.data",
            "prepare",
            "stdlib:",
            "--tokenizer",
            "bpe:8192",
            "--output",
            str(data / "stdlib"),
        ]
        data.mkdir()
        subprocess.run(
            [sys.executable, *prepare], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for turn in range(arguments.turns):
            for batch in BATCHES:
                for number, (name, layout) in enumerate(LAYOUTS.items()):
                    folder = Path(temporary) / f"run-{turn}-{batch}-{number}"
                    samples[batch][name] += run(layout, folder, data, arguments.steps, batch)
    text = report(samples)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "ranks_vs_threads.md").write_text(text)
    (RESULTS / "ranks_vs_threads.json").write_text(json.dumps(samples, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
