"""The largest context and batch of the paper's three models, planned: all on, each operator off, all off.

    python benchmarks/plan_paper_models.py [--steppe build/steppe] [--models 120b 241b 667b]

Every figure is a dry run that fits devices of 141 GB. Writes benchmarks/results/plan_paper_models.{json,md};
models and variants that are not asked for keep their rows.
"""

import argparse
import json
import subprocess
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "plan_paper_models"
GPUS = {"120b": 16, "241b": 32, "667b": 64}
# What the paper reports of its tuned FSDP2 baseline: tokens of context, and of a global batch.
PAPER_BASELINE = {"120b": 131072, "241b": 32768, "667b": 65536}
PAPER_BATCH = {"120b": 1.5e6, "241b": 1.8e6, "667b": 3e6}

NO_DISPATCH = ["dispatch.kind=ep"]
NO_VOCAB = ["loss.kind=vocab_parallel", "loss.tile_tokens=auto"]
NO_OFFLOAD = ["offload.activations=none", "offload.host_budget=0"]
CPU_ADAMW = ["optimizer.placement=cpu"]
VARIANTS = {
    "everything on": [],
    "dispatch off (ep)": NO_DISPATCH,
    "vocabulary off (vocab_parallel)": NO_VOCAB,
    "SCO off": NO_OFFLOAD,
    "stream off (cpu AdamW)": CPU_ADAMW,
    "all off": NO_DISPATCH + NO_VOCAB + NO_OFFLOAD + CPU_ADAMW,
}
# The batch is counted at the baseline's own kind of length: sequences that one rank holds whole.
BATCH_LENGTH = 8192
ABOUT = """`python benchmarks/plan_paper_models.py` at {commit}. Each figure is the largest for which the
dry run of the fullest rank fits 141 GB less 2 GiB for what no tensor has (steps of one 64th). Context:
tokens of one sequence over 16 ranks, one micro-batch, `E_p = W`, `P = 8`, `c = 8,192`, 400 GiB of host
memory a node for layer inputs. Batch: tokens of one forward and backward, in sequences of {length:,} that a
rank holds whole. *All off* is no strawman: plain EP, the vocabulary-parallel loss, layer inputs on the
device and AdamW on the host, in the same lean program, under the same Ulysses attention, ZeRO-3,
recomputation and feed-forward tiles; hence the smaller distance than to the baseline of the paper (FSDP2),
which stops where the last line of each table says."""


def plan(steppe: Path, model: str, overrides: list[str], maximize: str | None) -> dict:
    command = [
        steppe,
        "plan",
        ROOT / "recipes" / f"paper_{model}_1m.toml",
        "--world-size",
        str(GPUS[model]),
        "--json",
    ]
    for override in overrides:
        command += ["--set", override]
    if maximize:
        command += ["--maximize", maximize]
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
    if done.returncode == 2:
        return {"fits": False, "verdict": done.stderr.strip().removeprefix("error: ")}
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command} ended with status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def largest(steppe: Path, model: str, overrides: list[str]) -> dict:
    """The longest context over Ulysses degrees, and the largest batch of sequences a rank holds whole."""
    context = {"fits": False, "seq_length": 0}
    for degree in (16, 8, 4, 2):
        # With fewer ranks to a sequence there are more sequences, not longer ones.
        found = plan(
            steppe,
            model,
            [*overrides, f"parallelism.ulysses_degree={degree}"],
            "context",
        )
        if found["fits"] and found["seq_length"] > context["seq_length"]:
            context = {**found, "ulysses_degree": degree}
        if context["fits"]:
            break
    alone = ["parallelism.ulysses_degree=1", f"training.seq_length={BATCH_LENGTH}"]
    batch = plan(steppe, model, [*overrides, *alone], "batch")
    tokens = batch["tokens_per_rank"] * GPUS[model] if batch["fits"] else 0
    limit = context.get("largest_phase", context.get("verdict", ""))
    return {
        "context": context["seq_length"],
        "ulysses_degree": context.get("ulysses_degree"),
        "limit": limit,
        "by_category": context.get("by_category"),
        "batch_tokens": tokens,
    }


def thousands(tokens: int) -> str:
    return f"{tokens / 1024:,.0f}K" if tokens else "–"


def table(rows: dict, commit: str) -> str:
    lines = [
        "# The paper's models on 141 GB devices, planned",
        "",
        textwrap.fill(ABOUT.format(commit=commit, length=BATCH_LENGTH), 118),
        "",
    ]
    for model, variants in rows.items():
        if not variants:
            continue
        base = variants.get("all off", {}).get("context")
        lines += [
            f"## {model.upper()}, {GPUS[model]} GPUs",
            "",
            "| | context | against all off | batch, tokens | the peak is in |",
            "| --- | --- | --- | --- | --- |",
        ]
        for name, row in variants.items():
            ratio = f"{row['context'] / base:.1f}×" if base and row["context"] else "–"
            reach = f"{thousands(row['context'])} | {ratio} | {thousands(row['batch_tokens'])}"
            lines.append(f"| {name} | {reach} | {row['limit']} |")
        lines += [
            "",
            f"The paper's baseline stops at {thousands(PAPER_BASELINE[model])}; "
            + f"with everything on it reports a batch of {PAPER_BATCH[model] / 1e6:.1f}M tokens.",
            "",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steppe", type=Path, default=ROOT / "build" / "steppe")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--models", nargs="+", default=list(GPUS), choices=list(GPUS))
    arguments = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    kept = RESULTS.with_suffix(".json")
    rows = json.loads(kept.read_text()) if kept.exists() else {model: {} for model in GPUS}
    for model in arguments.models:
        for name in arguments.variants:
            rows[model][name] = largest(arguments.steppe, model, VARIANTS[name])
            kept.write_text(json.dumps(rows, indent=2) + "\n")
            RESULTS.with_suffix(".md").write_text(table(rows, commit.stdout.strip()))
            print(
                model,
                name,
                rows[model][name]["context"],
                rows[model][name]["batch_tokens"],
                flush=True,
            )


if __name__ == "__main__":
    main()
