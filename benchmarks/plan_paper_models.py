"""The largest context and batch of the paper's three models, planned, and what limits them.

    python benchmarks/plan_paper_models.py [--steppe build/steppe] [--models 120b 241b 667b]

Every figure is a dry run that fits devices of 141 GB. Writes benchmarks/results/plan_paper_models.{json,md};
models and variants that are not asked for keep their rows.
"""

import argparse
import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from plan_paper_text import text
from step_vs_transformers import ROOT, git_commit

RESULTS = ROOT / "benchmarks" / "results" / "plan_paper_models"
GPUS = {"120b": 16, "241b": 32, "667b": 64}
DEGREE = 16  # ranks that share a sequence, as in the paper's longest runs
# The batch is counted at the baseline's own kind of length: sequences that one rank holds whole.
BATCH_LENGTH = 8192


@dataclass
class Variant:
    overrides: list[str] = field(default_factory=list)
    degree: int | None = DEGREE  # None: all ranks
    batch: bool = False


NO_DISPATCH = ["dispatch.kind=ep"]
NO_VOCAB = ["loss.kind=vocab_parallel"]
NO_OFFLOAD = ["offload.activations=none", "offload.host_budget=0"]
CPU_ADAMW = ["optimizer.placement=cpu"]
ALL_OFF = NO_DISPATCH + NO_VOCAB + NO_OFFLOAD + CPU_ADAMW
NOTHING_RECOMPUTED = ["activation_checkpoint.mode=none"]
FULL_LOGITS = ["loss.kind=full"]
VARIANTS = {
    "everything on": Variant(batch=True),
    "dispatch off (`ep`)": Variant(NO_DISPATCH, batch=True),
    "vocabulary off (`vocab_parallel`)": Variant(NO_VOCAB, batch=True),
    "SCO off": Variant(NO_OFFLOAD, batch=True),
    "stream off (`cpu` AdamW)": Variant(CPU_ADAMW, batch=True),
    "all off": Variant(ALL_OFF, batch=True),
    "all off, a rank holds its sequence whole (`D` = 1)": Variant(ALL_OFF, degree=1),
    "all off, nothing recomputed": Variant(ALL_OFF + NOTHING_RECOMPUTED),
    "all off, whole logits (`full`)": Variant(ALL_OFF + FULL_LOGITS),
    "all off, all three of these": Variant(ALL_OFF + NOTHING_RECOMPUTED + FULL_LOGITS, degree=1),
    "everything on, as many chunks as `c` asks for": Variant(["dispatch.max_chunks=64"]),
    "everything on, gradients on the host too": Variant(["optimizer.gradients=host"]),
    "everything on, `D` = `W`": Variant(degree=None),
}


def plan(steppe: Path, model: str, overrides: list[str], maximize: str) -> dict:
    recipe = ROOT / "recipes" / f"paper_{model}_1m.toml"
    command = [
        steppe,
        "plan",
        recipe,
        "--world-size",
        GPUS[model],
        "--json",
        "--maximize",
        maximize,
    ]
    for override in overrides:
        command += ["--set", override]
    done = subprocess.run([str(part) for part in command], check=False, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{command} ended with status {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def largest(steppe: Path, model: str, variant: Variant) -> dict:
    """The longest context, and the largest batch of sequences that a rank holds whole."""
    degree = variant.degree or GPUS[model]
    found = plan(
        steppe,
        model,
        [*variant.overrides, f"parallelism.ulysses_degree={degree}"],
        "context",
    )
    row = {"context": 0, "limit": found["verdict"]}
    if found["fits"]:
        row = {
            "context": found["seq_length"],
            "tokens_per_rank": found["tokens_per_rank"],
            "peak_bytes": found["peak_bytes"],
            "persistent_bytes": sum(found["persistent_by_category"].values()),
            "by_category": found["by_category"],
            "persistent_by_category": found["persistent_by_category"],
            "limit": found["instant"],
        }
    if variant.batch:
        alone = ["parallelism.ulysses_degree=1", f"training.seq_length={BATCH_LENGTH}"]
        batch = plan(steppe, model, [*variant.overrides, *alone], "batch")
        row["batch_tokens"] = batch["tokens_per_rank"] * GPUS[model] if batch["fits"] else 0
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steppe", type=Path, default=ROOT / "build" / "steppe")
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--models", nargs="+", default=list(GPUS), choices=list(GPUS))
    arguments = parser.parse_args()
    commit = git_commit("--short")
    kept = RESULTS.with_suffix(".json")
    rows = json.loads(kept.read_text()) if kept.exists() else {}
    for model in arguments.models:
        for name in arguments.variants:
            rows.setdefault(model, {})[name] = largest(arguments.steppe, model, VARIANTS[name])
            ordered = {m: {n: rows[m][n] for n in VARIANTS if n in rows[m]} for m in GPUS if m in rows}
            kept.write_text(json.dumps(ordered, indent=2) + "\n")
            RESULTS.with_suffix(".md").write_text(text(ordered, GPUS, commit))
            row = rows[model][name]
            print(model, name, row["context"], row.get("batch_tokens", ""), flush=True)


if __name__ == "__main__":
    main()
