"""Draws docs/vocab_loss_memory.svg from dry runs of the program:

python scripts/plot_vocab_loss.py build/steppe docs/vocab_loss_memory.svg
"""

import argparse
import json
import math
import subprocess
from pathlib import Path

KINDS = {
    "full": ("full", "#b03030"),
    "vocab_parallel": ("vocab_parallel", "#d08a2e"),
    "ring_activations": ("ring, activations", "#4a7fb5"),
    "ring_weights": ("ring, weights", "#2d4f8a"),
    "tiled": ("tiled", "#2f8f4e"),
}
WIDTH, HEIGHT, MARGIN_LEFT, MARGIN_TOP, GAP = 330, 250, 62, 40, 70
GIB = 2**30
LOW, HIGH = 2**-5, 2**9  # GiB


def vocab_bytes(program: Path, tokens: int, vocab: int) -> dict[str, int]:
    arguments = [
        "--tokens",
        tokens,
        "--vocab",
        vocab,
        "--hidden",
        7168,
        "--degree",
        8,
        "--dtype",
        "bf16",
    ]
    command = [str(program), "bench", "vocab", "--dry", "--json", *map(str, arguments)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {row["kind"]: row["vocab_bytes"] for row in map(json.loads, lines)}


class Panel:
    """Bytes over one quantity, both axes logarithmic."""

    def __init__(self, left: int, title: str, values: list[int], series: list[dict[str, int]]):
        self.left, self.title, self.values, self.series = left, title, values, series

    def x(self, value: float) -> float:
        low, high = self.values[0], self.values[-1]
        return self.left + WIDTH * math.log(value / low) / math.log(high / low)

    def y(self, gib: float) -> float:
        share = math.log(max(gib, LOW) / LOW) / math.log(HIGH / LOW)
        return MARGIN_TOP + HEIGHT * (1 - share)

    def svg(self) -> list[str]:
        bottom = MARGIN_TOP + HEIGHT
        out = [f'<text x="{self.left}" y="{MARGIN_TOP - 14}" font-weight="bold">{self.title}</text>']
        gib = LOW
        while gib <= HIGH:
            y = self.y(gib)
            label = f"{gib:g} GiB" if gib >= 1 else f"{gib * 1024:g} MiB"
            out.append(
                f'<line x1="{self.left}" y1="{y:.1f}" x2="{self.left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
            )
            out.append(f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
            gib *= 4
        for value in self.values[::2]:
            x = self.x(value)
            out.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{value // 1024}k</text>')
        for kind, (_, color) in KINDS.items():
            points = zip(self.values, self.series, strict=True)
            path = " ".join(f"{self.x(v):.1f},{self.y(row[kind] / GIB):.1f}" for v, row in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        return out


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
        Panel(
            MARGIN_LEFT,
            "tokens of a rank, V = 200,000",
            tokens,
            [vocab_bytes(arguments.program, n, 200_000) for n in tokens],
        ),
        Panel(
            MARGIN_LEFT + WIDTH + GAP,
            "vocabulary, N = 65,536",
            vocabularies,
            [vocab_bytes(arguments.program, 65_536, v) for v in vocabularies],
        ),
    ]
    total_width, total_height = (
        MARGIN_LEFT + 2 * WIDTH + GAP + 20,
        MARGIN_TOP + HEIGHT + 62,
    )
    font = 'font-family="sans-serif" font-size="11"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total_width}" height="{total_height}" {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel in panels:
        out += panel.svg()
    left = MARGIN_LEFT
    for label, color in KINDS.values():
        y = MARGIN_TOP + HEIGHT + 44
        out.append(
            f'<line x1="{left}" y1="{y - 4}" x2="{left + 22}" y2="{y - 4}" '
            f'stroke="{color}" stroke-width="3"/>'
        )
        out.append(f'<text x="{left + 28}" y="{y}">{label}</text>')
        left += 140
    out.append("</svg>")
    arguments.output.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
