"""Draws docs/moe_dispatch_timeline.svg from a trace that the benchmark has written:

build/steppe bench dispatch --kind llep --kind pipelined_llep --timeline trace.json …
python scripts/plot_dispatch_timeline.py trace.json docs/moe_dispatch_timeline.svg
"""

import argparse
import json
from pathlib import Path

ROWS = {1: ("experts", "#2f8f4e"), 2: ("rows on their way", "#4a7fb5")}
WIDTH, LEFT, BAR, GAP, TOP = 760, 130, 14, 6, 30
PASS_ROW = 0


def spans(events: list[dict], rank: int, row: int) -> list[tuple[str, float, float]]:
    """Name, begin and end in milliseconds."""
    return [
        (e["name"], e["ts"] / 1e3, (e["ts"] + e["dur"]) / 1e3)
        for e in events
        if e["ph"] == "X" and e["pid"] == rank and e["tid"] == row
    ]


def lanes_of(own: list[tuple[str, float, float]]) -> list[list[tuple[float, float]]]:
    """Spans side by side wherever they overlap: each goes to the first lane that is free."""
    lanes: list[list[tuple[float, float]]] = []
    for _, begin, end in sorted(own, key=lambda span: span[1]):
        for lane in lanes:
            if lane[-1][1] <= begin:
                lane.append((begin, end))
                break
        else:
            lanes.append([(begin, end)])
    return lanes


def draw_pass(events: list[dict], rank: int, a_pass: tuple[str, float, float], y: float, scale: float):
    """One pass's bars from y downwards; returns the elements and the y below them."""
    name, begin, end = a_pass
    out = [f'<text x="8" y="{y + 11}" font-weight="bold">{name}, {end - begin:.0f} ms</text>']
    y += 18
    for row, (label, color) in ROWS.items():
        own = [span for span in spans(events, rank, row) if begin <= span[1] and span[2] <= end + 1]
        out.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end">{label}</text>')
        for lane in lanes_of(own) or [[]]:
            for first, last in lane:
                x, width = LEFT + scale * (first - begin), max(0.4, scale * (last - first))
                out.append(
                    f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" '
                    f'fill="{color}" stroke="white" stroke-width="0.2"/>'
                )
            y += BAR + 2
        y += GAP
    return out, y + GAP


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--rank", type=int, default=0)
    arguments = parser.parse_args()
    events = json.loads(arguments.trace.read_text())["traceEvents"]
    passes = spans(events, arguments.rank, PASS_ROW)
    scale = WIDTH / max(end - begin for _, begin, end in passes)
    body, y = [f'<text x="8" y="18">Rank {arguments.rank}; all passes on one scale</text>'], float(TOP)
    for a_pass in passes:
        drawn, y = draw_pass(events, arguments.rank, a_pass, y, scale)
        body += drawn
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 12}" height="{y:.0f}"'
    out = [head + ' font-family="sans-serif" font-size="11">']
    out.append('<rect width="100%" height="100%" fill="white"/>')
    arguments.output.write_text("\n".join([*out, *body, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
