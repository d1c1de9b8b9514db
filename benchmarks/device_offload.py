"""Boundaries and attention outputs in host memory, on a GPU: bits, bytes and time.

    python benchmarks/device_offload.py [--build FOLDER] [--tokens N] [--layers L] [--hidden H] [--samples N]

Runs the offload room's tests, which copy to and fro on the GPU and compare bit for bit, then `steppe bench
offload` in bf16, and prints what the figures must show: steps whose boundaries leave for host memory at most
2 % slower, kept attention outputs faster than recomputed ones, the peak a line in the boundaries sent away,
and the tracked peak equal to what PyTorch's allocator was asked for. Exit status 1 when one does not hold.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOWDOWN = 1.02
SCO = ("sco_quarter", "sco_half", "all")


def program(build: Path, name: str) -> str:
    found = [path for path in build.rglob(name) if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        raise SystemExit(f"{build} has no program {name}: build it there first")
    return str(found[0])


def bench(build: Path, sizes: dict[str, int]) -> dict[str, dict]:
    command = [
        program(build, "steppe"),
        "bench",
        "offload",
        "--json",
        "--dtype",
        "bf16",
    ]
    for name, value in sizes.items():
        command += [f"--{name}", str(value)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return {row["placement"]: row for row in map(json.loads, output.splitlines())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build-cuda")
    sizes = {
        "tokens": 32768,
        "layers": 12,
        "hidden": 2048,
        "heads": 16,
        "kv-heads": 4,
        "head-dim": 128,
        "experts": 16,
        "top-k": 4,
        "intermediate": 1024,
        "vocab": 32768,
        "samples": 10,
    }
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    sizes = {name: getattr(arguments, name.replace("-", "_")) for name in sizes}

    subprocess.run([program(arguments.build, "offload_test"), "--gtest_brief=1"], check=True)
    rows = bench(arguments.build, sizes)
    boundary = sizes["tokens"] * sizes["hidden"] * 2
    device = rows["device"]
    held = True

    def check(holds: bool, text: str) -> None:
        nonlocal held
        held = held and holds
        print(f"  {'ok ' if holds else 'NOT'} {text}")

    for name, row in rows.items():
        print(f"{name:24} {row['time_s'] * 1e3:9.1f} ms  x {row['against_device']:.3f}  {json.dumps(row)}")
        if row["allocator_peak_bytes"] is not None:
            check(
                row["allocator_peak_bytes"] == row["peak_bytes"],
                "the allocator was asked for as much",
            )
    for name in SCO:
        row = rows[name]
        sent = min(row["boundaries_on_host"], sizes["layers"] - 2)
        check(
            row["against_device"] <= SLOWDOWN,
            f"{name}: at most {SLOWDOWN - 1:.0%} slower",
        )
        saved = device["peak_bytes"] - row["peak_bytes"]
        check(saved == sent * boundary, f"{name}: the peak is lower by {sent} boundaries")
    check(
        rows["outputs_on_device"]["against_device"] < 1,
        "kept attention outputs are faster than recomputed ones",
    )
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
