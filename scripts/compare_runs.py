"""Two runs side by side: peak memory by category, speed, and how far their losses lie apart.

python scripts/compare_runs.py RUN OTHER
"""

import json
import statistics
import sys
from pathlib import Path

MIB = 1 << 20


def steps_of(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [step for step in map(json.loads, lines) if step["step"] > 0]


def rows(runs: list[list[dict]]) -> list[tuple[str, ...]]:
    peaks = [max(steps, key=lambda step: step["peak_bytes"]) for steps in runs]
    categories = sorted({name for peak in peaks for name in peak["peak_by_category"]})
    table = [("peak on the device, MiB", *(f"{peak['peak_bytes'] / MIB:.1f}" for peak in peaks))]
    for name in categories:
        held = [peak["peak_by_category"].get(name, 0) for peak in peaks]
        if max(held) >= MIB // 4:
            table.append((f"  {name}", *(f"{value / MIB:.1f}" for value in held)))
    table.append(
        ("host memory, MiB", *(f"{max(s.get('host_bytes', 0) for s in run) / MIB:.1f}" for run in runs))
    )
    speeds = [statistics.median(step["tokens_per_s"] for step in run[2:] or run) for run in runs]
    table.append(("tokens/s", *(f"{speed:,.0f}" for speed in speeds)))
    return table


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folders = [Path(name) for name in sys.argv[1:]]
    runs = [steps_of(folder) for folder in folders]
    table = [("", *(folder.name for folder in folders)), *rows(runs)]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    for row in table:
        print(f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}")
    common = min(len(run) for run in runs)
    apart = [abs(a["loss"] - b["loss"]) for a, b in zip(*(run[:common] for run in runs), strict=True)]
    first_ten = max(apart[:10])
    print(f"losses apart: step 1 {apart[0]:.1e}, 10 steps {first_ten:.1e}, all {common} {max(apart):.1e}")


if __name__ == "__main__":
    main()
