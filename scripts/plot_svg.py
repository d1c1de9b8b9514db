"""Line charts as SVG for docs/: panels side by side, bytes on a logarithmic axis, one legend."""

import json
import math
import subprocess
from dataclasses import dataclass
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, GAP = 330, 250, 62, 40, 70
GIB = 2**30


@dataclass
class Panel:
    title: str
    positions: list[float]  # of the values on the horizontal axis, 0 to 1
    labels: list[str]  # of each position; empty: none
    series: dict[str, list[float]]  # GiB, by kind
    low: float  # GiB
    high: float
    line_factor: int = 2  # between the lines of the grid


def gib_label(gib: float) -> str:
    return f"{gib:g} GiB" if gib >= 1 else f"{gib * 1024:g} MiB"


def panel_svg(panel: Panel, left: int, colors: dict[str, str]) -> list[str]:
    def y_of(gib: float) -> float:
        share = math.log(max(gib, panel.low) / panel.low) / math.log(panel.high / panel.low)
        return TOP + HEIGHT * (1 - share)

    xs = [left + WIDTH * position for position in panel.positions]
    out = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{panel.title}</text>']
    gib = panel.low
    while gib <= panel.high:
        y = y_of(gib)
        out.append(f'<line x1="{left}" y1="{y:.1f}" x2="{left + WIDTH}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{gib_label(gib)}</text>')
        gib *= panel.line_factor
    for x, label in zip(xs, panel.labels, strict=True):
        if label:
            out.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{label}</text>')
    for kind, color in colors.items():
        points = zip(xs, panel.series[kind], strict=True)
        path = " ".join(f"{x:.1f},{y_of(value):.1f}" for x, value in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
    return out


def write_svg(output: Path, panels: list[Panel], kinds: dict[str, tuple[str, str]]) -> None:
    """kinds: of each, what the legend calls it, and its color."""
    width = LEFT + len(panels) * (WIDTH + GAP) - GAP + 20
    font = 'font-family="sans-serif" font-size="11"'
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{TOP + HEIGHT + 62}" {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    colors = {kind: color for kind, (_, color) in kinds.items()}
    for number, panel in enumerate(panels):
        out += panel_svg(panel, LEFT + number * (WIDTH + GAP), colors)
    for number, (label, color) in enumerate(kinds.values()):
        x, y = LEFT + 140 * number, TOP + HEIGHT + 44
        out.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{color}" stroke-width="3"/>'
        )
        out.append(f'<text x="{x + 28}" y="{y}">{label}</text>')
    out.append("</svg>")
    output.write_text("\n".join(out) + "\n")


def dry_rows(program: Path, benchmark: str, **options: object) -> list[dict]:
    """The rows of `steppe bench BENCHMARK --dry --json`; an option a_b is --a-b."""
    command = [str(program), "bench", benchmark, "--dry", "--json"]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line) for line in lines]
