"""The optimizer on a GPU: the bits of the CPU, and the streamed step against the host's and the link's speed.

    python benchmarks/device_optimizer.py [--build FOLDER] [--params N] [--bucket N] [--slots N] [--cores N]

Runs the optimizer's tests, which compare every placement on the GPU with the CPU bit for bit, then `steppe
bench optimizer` with bf16 working weights, and prints what the figures must show: `stream` at least 2.05
times as fast as `cpu` with an eighth of the host's cores, and at least 90 % of what the link moves in the
same bytes. Exit status 1 when one of them does not hold.
"""

import argparse
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FASTER_THAN_CPU = 2.05
SHARE_OF_LINK = 0.9


def run(command: list[str], threads: int) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout


def program(build: Path, name: str) -> str:
    found = [path for path in build.rglob(name) if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        raise SystemExit(f"{build} has no program {name}: build it there first")
    return str(found[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build-cuda")
    parser.add_argument("--params", type=float, default=1e9)
    parser.add_argument("--bucket", type=float, default=1e8)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--cores", type=int, default=max(1, (os.cpu_count() or 8) // 8))
    arguments = parser.parse_args()

    print(run([program(arguments.build, "optim_test"), "--gtest_filter=Optimizer.*"], threads=1)[-300:])
    command = [program(arguments.build, "steppe"), "bench", "optimizer", "--json", "--dtype", "bf16"]
    for name in ("params", "bucket", "slots"):
        command += [f"--{name}", str(getattr(arguments, name))]
    held = True
    for gradients in ([], ["--host-gradients"]):
        lines = run([*command, *gradients], arguments.cores).splitlines()
        rows = {row["placement"]: row for row in map(json.loads, lines)}
        seconds = {name: row["time_s"] for name, row in rows.items()}
        faster = seconds["cpu"] / seconds["stream"]
        share = seconds["link"] / seconds["stream"]
        bandwidth = rows["stream"]["link_bytes"] / seconds["link"] / 1e9
        held = held and faster >= FASTER_THAN_CPU and share >= SHARE_OF_LINK
        print(f"gradients on the {'host' if gradients else 'device'}, {arguments.cores} cores")
        for name, row in rows.items():
            print(f"  {name:12} {row['time_s'] * 1e3:10.1f} ms   {json.dumps(row)}")
        print(f"  stream is {faster:.2f} times as fast as cpu (wanted: {FASTER_THAN_CPU})")
        print(
            f"  and at {share:.1%} of the link's {bandwidth:.1f} GB/s each way (wanted: {SHARE_OF_LINK:.0%})"
        )
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
