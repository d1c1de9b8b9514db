"""Draws docs/moe_dispatch_memory.svg from dry runs of the program:

python scripts/plot_moe_dispatch.py build/steppe docs/moe_dispatch_memory.svg
"""

import argparse
import math
from pathlib import Path

from plot_svg import GIB, Panel, dry_rows, write_svg

KINDS = {
    "ep": ("ep", "#b03030"),
    "llep": ("llep", "#d08a2e"),
    "llep_tiled": ("llep in tiles", "#4a7fb5"),
    "pipelined_llep": ("pipelined_llep", "#2f8f4e"),
}
PROFILES = ["balanced", "30/16", "50/16", "80/16", "95/16", "30/4", "50/4"]


def layer_peaks(program: Path, tokens: int, profile: str) -> dict[str, float]:
    """GiB of one gpt-oss-120b layer on 8 ranks: the larger of both passes, by kind."""
    peaks = dict.fromkeys(KINDS, 0.0)
    for row in dry_rows(
        program,
        "dispatch",
        shape="gpt-oss-120b",
        expert_degree=8,
        dtype="bf16",
        profile=profile,
        tokens=tokens,
    ):
        peaks[row["kind"]] = max(peaks[row["kind"]], row["peak_bytes"] / GIB)
    return peaks


def panel(title: str, labels: list[str], peaks: list[dict[str, float]]) -> Panel:
    series = {kind: [of_kind[kind] for of_kind in peaks] for kind in KINDS}
    every = [value for values in series.values() for value in values]
    low, high = 2 ** math.floor(math.log2(min(every))), 2 ** math.ceil(math.log2(max(every)))
    positions = [i / (len(labels) - 1) for i in range(len(labels))]
    return Panel(title, positions, labels, series, low, high)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    tokens = [2**e for e in range(10, 18)]
    over_tokens = [layer_peaks(arguments.program, n, "balanced") for n in tokens]
    over_skew = [layer_peaks(arguments.program, 65_536, profile) for profile in PROFILES]
    panels = [
        panel("layer peak, tokens of a rank", [f"{n // 1024}k" for n in tokens], over_tokens),
        panel("layer peak, routing at 65,536 tokens", PROFILES, over_skew),
    ]
    write_svg(arguments.output, panels, KINDS)


if __name__ == "__main__":
    main()
