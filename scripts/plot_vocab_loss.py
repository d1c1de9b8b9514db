"""Draws docs/vocab_loss_memory.svg from dry runs of the program:

python scripts/plot_vocab_loss.py build/steppe docs/vocab_loss_memory.svg
"""

import argparse
import math
from pathlib import Path

from plot_svg import GIB, Panel, dry_rows, write_svg

KINDS = {
    "full": ("full", "#b03030"),
    "vocab_parallel": ("vocab_parallel", "#d08a2e"),
    "ring_activations": ("ring, activations", "#4a7fb5"),
    "ring_weights": ("ring, weights", "#2d4f8a"),
    "tiled": ("tiled", "#2f8f4e"),
}


def panel(program: Path, title: str, axis: str, values: list[int], fixed: dict[str, int]) -> Panel:
    """Memory over one quantity; both axes are logarithmic."""
    series: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for value in values:
        for row in dry_rows(program, "vocab", hidden=7168, degree=8, dtype="bf16", **{axis: value}, **fixed):
            series[row["kind"]].append(row["vocab_bytes"] / GIB)
    span = math.log(values[-1] / values[0])
    positions = [math.log(value / values[0]) / span for value in values]
    labels = [f"{value // 1024}k" if i % 2 == 0 else "" for i, value in enumerate(values)]
    return Panel(title, positions, labels, series, 2**-5, 2**9, line_factor=4)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    tokens = [2**e for e in range(12, 19)]
    vocabularies = [2**e for e in range(14, 19)]
    panels = [
        panel(arguments.program, "tokens of a rank, V = 200,000", "tokens", tokens, {"vocab": 200_000}),
        panel(arguments.program, "vocabulary, N = 65,536", "vocab", vocabularies, {"tokens": 65_536}),
    ]
    write_svg(arguments.output, panels, KINDS)


if __name__ == "__main__":
    main()
