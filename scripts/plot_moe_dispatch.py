"""Draws docs/moe_dispatch_memory.svg from dry runs of the program:

python scripts/plot_moe_dispatch.py build/steppe docs/moe_dispatch_memory.svg
"""

import argparse
import json
import math
import subprocess
from pathlib import Path

KINDS = {
    "ep": ("ep", "#b03030"),
    "llep": ("llep", "#d08a2e"),
    "llep_tiled": ("llep in tiles", "#4a7fb5"),
    "pipelined_llep": ("pipelined_llep", "#2f8f4e"),
}
PROFILES = ["balanced", "30/16", "50/16", "80/16", "95/16", "30/4", "50/4"]
WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 250, 62, 40, 70
GIB = 2**30


def layer_peaks(program: Path, tokens: int, profile: str) -> dict[str, float]:
    """GiB of one gpt-oss-120b layer on 8 ranks: the larger of both passes, by kind."""
    command = [
        str(program),
        "bench",
        "dispatch",
        "--dry",
        "--json",
        "--shape",
        "gpt-oss-120b",
    ]
    command += ["--expert-degree", "8", "--dtype", "bf16", "--profile", profile]
    command += ["--tokens", str(tokens)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peaks: dict[str, float] = {}
    for row in map(json.loads, lines.splitlines()):
        peaks[row["kind"]] = max(peaks.get(row["kind"], 0), row["peak_bytes"] / GIB)
    return peaks


class Panel:
    """Layer peaks over one quantity; the vertical axis is logarithmic."""

    def __init__(self, left: int, title: str, labels: list[str], series: list[dict[str, float]]):
        self.left, self.title, self.labels, self.series = left, title, labels, series
        largest = max(max(row.values()) for row in series)
        smallest = min(min(row.values()) for row in series)
        self.low, self.high = (
            2 ** math.floor(math.log2(smallest)),
            2 ** math.ceil(math.log2(largest)),
        )

    def x(self, index: int) -> float:
        return self.left + WIDTH * index / (len(self.labels) - 1)

    def y(self, gib: float) -> float:
        return TOP + HEIGHT * (1 - math.log(gib / self.low) / math.log(self.high / self.low))

    def svg(self) -> list[str]:
        out = [f'<text x="{self.left}" y="{TOP - 14}" font-weight="bold">{self.title}</text>']
        gib = self.low
        while gib <= self.high:
            y = self.y(gib)
            out.append(
                f'<line x1="{self.left}" y1="{y:.1f}" x2="{self.left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>'
            )
            out.append(f'<text x="{self.left - 6}" y="{y + 4:.1f}" text-anchor="end">{gib:g} GiB</text>')
            gib *= 2
        for i, label in enumerate(self.labels):
            out.append(
                f'<text x="{self.x(i):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{label}</text>'
            )
        for kind, (_, color) in KINDS.items():
            path = " ".join(f"{self.x(i):.1f},{self.y(row[kind]):.1f}" for i, row in enumerate(self.series))
            out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        return out


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
        Panel(
            LEFT,
            "layer peak, tokens of a rank",
            [f"{n // 1024}k" for n in tokens],
            over_tokens,
        ),
        Panel(
            LEFT + WIDTH + GAP,
            "layer peak, routing at 65,536 tokens",
            PROFILES,
            over_skew,
        ),
    ]
    size = f'width="{LEFT + 2 * WIDTH + GAP + 20}" height="{TOP + HEIGHT + 62}"'
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">']
    out.append('<rect width="100%" height="100%" fill="white"/>')
    for panel in panels:
        out += panel.svg()
    for i, (label, color) in enumerate(KINDS.values()):
        x, y = LEFT + 140 * i, TOP + HEIGHT + 44
        out.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{color}" stroke-width="3"/>'
        )
        out.append(f'<text x="{x + 28}" y="{y}">{label}</text>')
    out.append("</svg>")
    arguments.output.write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
