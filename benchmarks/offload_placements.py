"""Kept on the device or in host memory: bytes and times of a step, `steppe bench offload` at three sizes.

    python benchmarks/offload_placements.py [--steppe build/steppe]

Writes benchmarks/results/activation_offload.{json,md}. The last size is a dry run.
"""

import argparse
import json
import os
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from step_vs_transformers import ROOT, git_commit, machine

RESULTS = ROOT / "benchmarks" / "results" / "activation_offload"


@dataclass
class Case:
    title: str
    options: str


CASES = [
    Case(
        "16,384 tokens, two layers: attention outputs kept and recomputed.",
        "--tokens 16384 --layers 2 --hidden 128 --heads 2 --kv-heads 1 --head-dim 64 --intermediate 128 "
        "--vocab 1024 --samples 7 --placement device --placement outputs_on_device "
        "--placement outputs_on_host",
    ),
    Case(
        "2,048 tokens, eight layers: boundaries in host memory.",
        "--tokens 2048 --layers 8 --samples 10 --placement device --placement sco_half --placement all "
        "--placement all_and_outputs_on_host --placement outputs_on_device",
    ),
    Case(
        "Bytes of a dry run: 39 layers, 131,072 tokens, `H` = 7168, bf16, one rank with everything.",
        "--dry --tokens 131072 --layers 39 --hidden 7168 --heads 64 --kv-heads 8 --head-dim 128 --experts 8 "
        "--top-k 8 --intermediate 2048 --vocab 25000 --dtype bf16",
    ),
]


def bytes_text(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def table(rows: list[dict]) -> list[str]:
    timed = rows[0]["time_s"] is not None
    names = ["placement", "device peak", "boundaries there", "host"] + ["time", "against `device`"] * timed
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join(['---'] * len(names))} |"]
    for row in rows:
        cells = [
            f"`{row['placement']}`",
            *(bytes_text(row[f"{key}_bytes"]) for key in ("peak", "boundary", "host")),
        ]
        if timed:
            cells += [f"{row['time_s']:.2f} s", f"{row['against_device']:.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def text(result: dict) -> str:
    lines = [
        "# Boundaries and attention outputs, on the device and off it",
        "",
        "Forward and backward of one small model, two threads of a CPU; medians, and medians of the ratios "
        "of neighbouring samples. Every placement gives the loss and gradient norm of `device` to the bit.",
    ]
    for case, run in zip(CASES, result["runs"], strict=True):
        lines += ["", case.title, "", *table(run["rows"])]
    cpu, cores = (result["machine"][key] for key in ("cpu", "cores"))
    lines += ["", f"Machine: {cpu}, {cores} cores. Commit {result['commit']}."]
    lines += ["", *(f"    {run['command']}" for run in result["runs"])]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steppe", type=Path, default=ROOT / "build" / "steppe")
    options = parser.parse_args()
    result = {"machine": machine(), "commit": git_commit(), "runs": []}
    for case in CASES:
        words = ["bench", "offload", "--json", *shlex.split(case.options)]
        done = subprocess.run(
            [options.steppe, *words],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        result["runs"].append({"command": f"OMP_NUM_THREADS=2 steppe {shlex.join(words)}", "rows": rows})
        print("\n".join([case.title, *table(rows)]), flush=True)
    RESULTS.with_suffix(".json").write_text(json.dumps(result, indent=2) + "\n")
    RESULTS.with_suffix(".md").write_text(text(result))


if __name__ == "__main__":
    main()
