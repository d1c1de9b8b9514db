"""The optimizer beside PyTorch's fused AdamW and DeepSpeedCPUAdam: time and bytes of a step.

One process of ours, one of theirs, the same weights, gradients and threads, samples in turns (`steppe bench
optimizer --peers`); our placements agree to the bit before they are timed, and with the peers to rounding.

    ./dev bench optimizer_vs_peers [--params N] [--bucket N] [--slots N] [--threads N] [--samples N]
"""

import argparse
import sys

from peers.in_turns import bench_rows, peer_versions, write_results
from step_vs_transformers import git_commit, machine

# Names of the cases, and what they ask of `steppe bench optimizer`. Peers have fp32 weights.
CASES = {
    "fp32, gradients on the device": ["--dtype", "fp32", "--peers"],
    "bf16 working weights, gradients on the host": [
        "--dtype",
        "bf16",
        "--host-gradients",
    ],
}


def measure(arguments: argparse.Namespace, case: list[str]) -> list[dict]:
    sizes = {name: getattr(arguments, name) for name in ("params", "bucket", "slots", "samples")}
    return bench_rows("optimizer", sizes, arguments.threads, case)


def mebibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**20:,.0f}"


def report(result: dict) -> str:
    lines = [
        "# The optimizer beside its peers",
        "",
        f"One AdamW step of {result['params'] / 1e6:.0f}M parameters in buckets of "
        f"{result['bucket'] / 1e6:.0f}M, {result['slots']} slots, {result['threads']} threads. Medians of "
        f"{result['samples']} samples, in turns. `host_update` is the arithmetic of `cpu` alone, with "
        "everything in host memory, as the peers have it; `link` is the copies of `stream` alone, both ways "
        "at a time. Bytes in MiB: masters and moments on the device, all on the host, staging on the device, "
        "over the link each way.",
    ]
    for case, rows in result["rows"].items():
        lines += [
            "",
            f"## {case}",
            "",
            "| | time | a parameter | device | host | staging | link |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in rows:
            name = row.get("placement") or row["peer"]
            sizes = " | ".join(
                mebibytes(row[f"{kind}_bytes"]) for kind in ("device", "host", "staging", "link")
            )
            time = row["time_s"]
            lines.append(f"| {name} | {time * 1e3:.1f} ms | {time / row['params'] * 1e9:.2f} ns | {sizes} |")
    host = result["machine"]
    lines += [
        "",
        f"Machine: {host['cpu']}, {host['cores']} cores, no GPU (the device is the CPU, the link its "
        f"memory), load {host['load_average']:.2f} before the run. Commit {result['commit']}. "
        f"torch {result['versions']['torch']}, DeepSpeed {result['versions']['deepspeed']}.",
        "",
        f"    {result['command']}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--params", type=int, default=40_000_000)
    parser.add_argument("--bucket", type=int, default=10_000_000)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=15)
    arguments = parser.parse_args()
    result = vars(arguments) | {
        "machine": machine(),
        "commit": git_commit(),
        "versions": peer_versions("torch", "deepspeed"),
        "command": " ".join(["./dev bench optimizer_vs_peers", *sys.argv[1:]]),
    }
    result["rows"] = {case: measure(arguments, flags) for case, flags in CASES.items()}
    write_results("optimizer_vs_peers", result, report)


if __name__ == "__main__":
    main()
