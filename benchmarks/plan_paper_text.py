"""The page about plan_paper_models.json: tables, and what limits each reach, out of the rows' own figures."""

import textwrap

# What the paper reports of its tuned FSDP2 baseline, in tokens of context, and of its own largest batch.
PAPER_BASELINE = {"120b": 131072, "241b": 32768, "667b": 65536}
PAPER_BATCH = {"120b": 1.5e6, "241b": 1.8e6, "667b": 3e6}
# Of a device of 141 GB.
RESERVED = 2 << 30
ROOM = 141e9 - RESERVED

ABOUT = """`python benchmarks/plan_paper_models.py` at {commit}. Each figure is the largest for which the
dry run of the fullest rank fits 141 GB less 2 GiB for what no tensor has (steps of one 64th). Context:
tokens of one sequence over `D` = 16 ranks, one micro-batch, `E_p = W`, `P = 8`, `c = 8,192` and at most ten
chunks, 400 GiB of host memory a node for layer inputs. Batch: tokens of one forward and backward, in
sequences of 8,192 that a rank holds whole. *Kept*: weights and gradients, whatever the length. *A token*:
bytes for each token that a rank holds, at the peak. *All off* is plain EP, the vocabulary-parallel loss,
layer inputs on the device and AdamW on the host."""

WHY = """**What limits it.** With everything on {margin} times 1M tokens fit: {of_baseline:.0f}× the
{baseline} at which the paper's baseline (FSDP2, tuned) stops. Against all off here it is {ratio:.1f}×:
a token of a rank takes {of_off:.0f} KB there ({parts_off}) and {of_on:.0f} KB with everything on
({parts_on}), beside {kept:.0f} GB of weights and gradients that no operator changes. Eight times as far
as all off would be {far} tokens a rank: the residual stream and attention of one layer, which no
operator touches either, would take {untouched:.0f} GB, and {room:.0f} GB are left. So no operators
reach {paper_ratio:.0f}× this baseline, and what limits the ratio is how lean it is without them. Of
that, sequences shared by 16 ranks are worth {of_sequence:.1f}× (the layout's doing): without, all off
stops at {alone}, and everything on reaches {of_alone:.0f}× as far. Recomputation is worth
{of_recompute:.1f}×; with neither, and with each rank's logits whole, all off stops at {bare}. Its peak
is in the vocabulary loss because `vocab_parallel` gathers the rows of `P` ranks beside its logits. The
paper's own system was shown at 1M tokens and at a batch of {batch:.1f}M."""

MORE = """What takes everything on further: as many chunks as `c` asks for instead of ten
{of_chunks:.2f}×, gradients on the host {of_gradients:.2f}×, a sequence over all {ranks} ranks
{of_degree:.2f}×."""


def thousands(tokens: int) -> str:
    return f"{tokens / 1024:,.0f}K" if tokens else "–"


def token_bytes(row: dict) -> dict[str, float]:
    """By category, what a token of a rank takes at the peak, the largest first."""
    kept = row["persistent_by_category"]
    parts = {
        name: (size - kept.get(name, 0)) / row["tokens_per_rank"] for name, size in row["by_category"].items()
    }
    return dict(sorted(parts.items(), key=lambda part: -part[1]))


def largest_parts(row: dict, count: int) -> str:
    return ", ".join(f"{name} {size / 1e3:.0f}" for name, size in list(token_bytes(row).items())[:count])


def model_table(model: str, variants: dict, ranks: int) -> list[str]:
    lines = [
        f"## {model.upper()}, {ranks} GPUs",
        "",
        "| | context | against all off | batch, tokens | kept | a token | the peak is in |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    base = variants.get("all off", {}).get("context")
    for name, row in variants.items():
        batch = thousands(row["batch_tokens"]) if "batch_tokens" in row else ""
        if not row["context"]:
            lines.append(f"| {name} | none | | {batch} | | | {row['limit']} |")
            continue
        ratio = f"{row['context'] / base:.2f}×" if base else ""
        kept = f"{row['persistent_bytes'] / 1e9:.1f} GB"
        token = f"{sum(token_bytes(row).values()) / 1e3:.0f} KB"
        reach = f"{thousands(row['context'])} | {ratio} | {batch}"
        lines.append(f"| {name} | {reach} | {kept} | {token} | {row['limit']} |")
    return [*lines, ""]


def why(model: str, rows: dict, ranks: int) -> list[str]:
    on, off = rows["everything on"], rows["all off"]
    sequence, recompute, bare = (
        rows[f"all off, {name}"]["context"]
        for name in (
            "a rank holds its sequence whole (`D` = 1)",
            "nothing recomputed",
            "all three of these",
        )
    )
    of_on, of_off = token_bytes(on), token_bytes(off)
    far = 8 * off["tokens_per_rank"]
    said = WHY.format(
        margin=f"{on['context'] / 1048576:.1f}",
        off=thousands(off["context"]),
        ratio=on["context"] / off["context"],
        of_off=sum(of_off.values()) / 1e3,
        of_on=sum(of_on.values()) / 1e3,
        parts_off=largest_parts(off, 3),
        parts_on=largest_parts(on, 4),
        kept=on["persistent_bytes"] / 1e9,
        far=f"{far:,}",
        untouched=far * (of_on["residual"] + of_on["attention"]) / 1e9,
        room=(ROOM - on["persistent_bytes"]) / 1e9,
        paper_ratio=1048576 / PAPER_BASELINE[model],
        of_sequence=off["context"] / sequence if sequence else float("nan"),
        of_recompute=off["context"] / recompute if recompute else float("nan"),
        alone=thousands(sequence),
        of_alone=on["context"] / sequence if sequence else float("nan"),
        bare=thousands(bare),
        baseline=thousands(PAPER_BASELINE[model]),
        of_baseline=on["context"] / PAPER_BASELINE[model],
        batch=PAPER_BATCH[model] / 1e6,
    )
    more = MORE.format(
        of_chunks=rows["everything on, as many chunks as `c` asks for"]["context"] / on["context"],
        of_gradients=rows["everything on, gradients on the host too"]["context"] / on["context"],
        of_degree=rows["everything on, `D` = `W`"]["context"] / on["context"],
        ranks=ranks,
    )
    return [textwrap.fill(said, 118), "", textwrap.fill(more, 118), ""]


def text(rows: dict, gpus: dict, commit: str) -> str:
    lines = [
        "# The paper's models on 141 GB devices, planned",
        "",
        textwrap.fill(ABOUT.format(commit=commit), 118),
        "",
    ]
    for model, variants in rows.items():
        lines += model_table(model, variants, gpus[model])
        try:
            lines += why(model, variants, gpus[model])
        except KeyError:
            continue  # some rows are still to come
    return "\n".join(lines).rstrip() + "\n"
