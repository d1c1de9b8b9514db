"""`steppe plan --tune` against the paper's layout: the paper's three models, and cases of eight GPUs.

    python benchmarks/tune_paper_models.py [--steppe build/steppe] [--cases NAME …]

Every plan it gives must fit by its dry run, and take no longer by the time model than the recipe as it is,
with the paper's layout and every operator on; checked here, an error if not. Writes
benchmarks/results/plan_tune.{json,md}; cases that are not asked for keep their rows.
"""

import argparse
import json
import subprocess
import tempfile
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

from step_vs_transformers import ROOT, git_commit, machine

RESULTS = ROOT / "benchmarks" / "results" / "plan_tune"
GIB = 1 << 30
MOST_SECONDS = 60  # of a search, on two cores


@dataclass
class Case:
    recipe: str
    gpus: int
    overrides: list[str] = field(default_factory=list)
    sequences: int | None = None  # of a step, whatever the Ulysses degree, so that steps compare
    longest: bool = False  # at the longest context that fits with the recipe's layout


SMALL_MODEL = [
    "model.num_hidden_layers=16",
    "model.hidden_size=2048",
    "model.num_attention_heads=16",
    "model.num_key_value_heads=16",
    "model.head_dim=128",
    "model.moe_intermediate_size=1024",
    "model.num_experts=64",
    "model.num_experts_per_tok=8",
    "model.vocab_size=50304",
]
CASES = {
    "paper 120B": Case("paper_120b_1m", 16),
    "paper 241B": Case("paper_241b_1m", 32),
    "paper 667B": Case("paper_667b_1m", 64),
    "gpt-oss-120b": Case("gpt_oss_120b_128k", 8, sequences=8),
    "gpt-oss-120b, the longest": Case(
        "gpt_oss_120b_128k",
        8,
        ["model.max_position_embeddings=8388608"],
        sequences=1,
        longest=True,
    ),
    "Qwen3-235B": Case("qwen3_235b_128k", 16, sequences=8),
    "7B of 64 experts": Case("gpt_oss_120b_128k", 8, [*SMALL_MODEL, "training.seq_length=8192"], sequences=8),
    "7B of 64 experts, H100": Case(
        "gpt_oss_120b_128k", 8, [*SMALL_MODEL, "hardware.preset=H100"], sequences=8
    ),
}


def recipe_of(case: Case, folder: str) -> Path:
    text = (ROOT / "recipes" / f"{case.recipe}.toml").read_text()
    if case.sequences:
        given = "gradient_accumulation_steps = 1"
        assert given in text
        text = text.replace(given, f"global_batch_size = {case.sequences}")
    path = Path(folder) / f"{case.recipe}.toml"
    path.write_text(text)
    return path


def plan(steppe: Path, case: Case, overrides: list[str], flags: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            steppe,
            "plan",
            recipe_of(case, folder),
            "--world-size",
            case.gpus,
            "--json",
            *flags,
        ]
        for override in [*case.overrides, *overrides]:
            command += ["--set", override]
        done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command} ended with status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def work(made: dict) -> dict:
    keys = (
        "fits",
        "layout",
        "step_seconds",
        "peak_bytes",
        "host_bytes",
        "flops",
        "wire_bytes",
        "link_bytes",
    )
    return {key: made[key] for key in keys}


def tune(steppe: Path, case: Case) -> dict:
    overrides: list[str] = []
    if case.longest:
        overrides = [f"training.seq_length={plan(steppe, case, [], ['--maximize', 'context'])['seq_length']}"]
    given = plan(steppe, case, overrides, [])
    start = time.monotonic()
    tuned = plan(steppe, case, overrides, ["--tune"])
    seconds = time.monotonic() - start
    if not tuned["fits"]:
        raise RuntimeError(tuned["verdict"])
    return {
        "gpus": case.gpus,
        "hardware": tuned["hardware"],
        "seq_length": tuned["seq_length"],
        "search_seconds": seconds,
        "changes": tuned["changes"],
        "tuned": work(tuned),
        "paper_layout": work(given),
    }


def check(name: str, row: dict) -> None:
    tuned, given = row["tuned"], row["paper_layout"]
    if not tuned["fits"]:
        raise RuntimeError(f"{name}: what --tune chose does not fit")
    if given["fits"] and tuned["step_seconds"] > given["step_seconds"]:
        raise RuntimeError(f"{name}: the paper's layout takes less time than what --tune chose")
    if row["search_seconds"] > MOST_SECONDS:
        raise RuntimeError(f"{name}: the search took {row['search_seconds']:.0f} s")


def chosen(row: dict) -> str:
    values = {key: value.strip('"') for key, value in (change.split(" = ", 1) for change in row["changes"])}
    layout = row["tuned"]["layout"]
    means = [
        "everything kept" if values["activation_checkpoint.mode"] == "none" else "layers recomputed",
        f"AdamW {values['optimizer.placement']}",
    ]
    if values["optimizer.gradients"] == "host":
        means.append("gradients on the host")
    if values["offload.activations"] != "none":
        means.append(f"inputs to the host ({values['offload.host_budget']})")
    degrees = "/".join(
        str(layout[key]) for key in ("ulysses_degree", "expert_parallel_degree", "vocab_parallel_degree")
    )
    return f"{degrees}/{values['dispatch.token_budget']} | {', '.join(means)}"


def amounts(made: dict) -> str:
    link = {
        way: sum(value for key, value in made["link_bytes"].items() if key.endswith(way))
        for way in ("h2d", "d2h")
    }
    return (
        f"{sum(made['flops'].values()) / 1e15:,.1f} | {sum(made['wire_bytes'].values()) / 1e9:,.0f} | "
        f"{link['h2d'] / 1e9:,.0f} / {link['d2h'] / 1e9:,.0f}"
    )


ABOUT = """`python benchmarks/tune_paper_models.py` at {commit}. Each plan fits its devices by the dry run
of its fullest rank. *The paper's layout* is the recipe as it is in `recipes/`: `E_p = W`, `P = 8`, every
operator on, planned in the same way on the same sequences. Seconds of a step are the time model's
(docs/plan.md), and choose rather than promise; the search ran on {cores} cores ({cpu}). PFLOP, GB
over the wire and GB over the host link, up and down, are of a rank and a step."""


def table(rows: dict, commit: str, host: dict) -> str:
    lines = ["# What --tune chooses, against the paper's layout", ""]
    lines += [textwrap.fill(ABOUT.format(commit=commit, **host), 118), ""]
    lines += [
        "| model | GPUs | length | D/E_p/P/c | means | peak, GiB "
        "| a step, s | the paper's layout, s | search, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        tuned, given = row["tuned"], row["paper_layout"]
        theirs = f"{given['step_seconds']:.1f}" if given["fits"] else "does not fit"
        lines.append(
            f"| {name} | {row['gpus']} {row['hardware']} | {row['seq_length']:,} | {chosen(row)} | "
            f"{tuned['peak_bytes'] / GIB:.1f} | {tuned['step_seconds']:.1f} | {theirs} | "
            f"{row['search_seconds']:.0f} |"
        )
    lines += [
        "",
        "| work of a rank | PFLOP | wire, GB | link up / down, GB "
        "| the paper's layout: PFLOP | wire, GB | link, GB |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {amounts(row['tuned'])} | {amounts(row['paper_layout'])} |" for name, row in rows.items()
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steppe", type=Path, default=ROOT / "build" / "steppe")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    arguments = parser.parse_args()
    commit = git_commit("--short")
    kept = RESULTS.with_suffix(".json")
    rows = json.loads(kept.read_text()) if kept.exists() else {}
    for name in arguments.cases:
        row = tune(arguments.steppe, CASES[name])
        print(
            name,
            chosen(row),
            f"{row['tuned']['step_seconds']:.2f} s in {row['search_seconds']:.0f} s",
            flush=True,
        )
        check(name, row)
        rows[name] = row
        rows = {known: rows[known] for known in CASES if known in rows}
        kept.write_text(json.dumps(rows, indent=2) + "\n")
        RESULTS.with_suffix(".md").write_text(table(rows, commit, machine()))


if __name__ == "__main__":
    main()
