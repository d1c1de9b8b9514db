"""The vocabulary loss beside PyTorch's and Cut Cross-Entropy: time and memory of loss and both gradients.

One process of ours, one of theirs, the same input and threads, samples in turns (`steppe bench vocab
--peers`), every kind checked against full logits.

    ./dev bench vocab_loss_vs_peers [--tokens N] [--hidden H] [--vocab V] [--threads N] [--samples N]
"""

import argparse
import sys

from peers.in_turns import bench_rows, peer_versions, write_results
from step_vs_transformers import git_commit, machine

KINDS = ("full", "ring_weights", "tiled")  # on one rank, the others do what these do


def measure(arguments: argparse.Namespace) -> list[dict]:
    sizes = {name: getattr(arguments, name) for name in ("tokens", "hidden", "vocab", "samples")}
    kinds = [word for kind in KINDS for word in ("--kind", kind)]
    return bench_rows("vocab", sizes, arguments.threads, ["--peers", *kinds])


def report(result: dict) -> str:
    products = result["rows"][0]["products_time_s"]
    lines = [
        "# The vocabulary loss beside its peers",
        "",
        f"Loss, dx and dW of {result['tokens']} rows of {result['hidden']} against {result['vocab']} "
        f"entries, fp32, one process, {result['threads']} threads. Medians of {result['samples']} samples, "
        "in turns. Memory is what each takes beyond its input and both gradients: ours as allocated, theirs "
        "as the process grew (less than they take, where freed memory served again). The three "
        f"bare products take {products:.3f} s in tiles of the same size.",
        "",
        "| | time | ÷ products | memory |",
        "|---|---|---|---|",
    ]
    for row in result["rows"]:
        lines.append(
            f"| {row['kind']} | {row['time_s']:.3f} s | {row['time_s'] / products:.2f}× | "
            f"{row['vocab_bytes'] / 2**20:,.0f} MiB |"
        )
    host = result["machine"]
    lines += [
        "",
        f"Machine: {host['cpu']}, {host['cores']} cores, load {host['load_average']:.2f} before the run. "
        f"Commit {result['commit']}. torch {result['versions']['torch']}, cut-cross-entropy "
        f"{result['versions']['cut-cross-entropy']} (torch_compile).",
        "",
        f"    {result['command']}",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--vocab", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=10)
    arguments = parser.parse_args()
    result = vars(arguments) | {
        "machine": machine(),
        "versions": peer_versions("torch", "cut-cross-entropy"),
        "commit": git_commit(),
        "command": " ".join(["./dev bench vocab_loss_vs_peers", *sys.argv[1:]]),
        "rows": measure(arguments),
    }
    write_results("vocab_loss_vs_peers", result, report)


if __name__ == "__main__":
    main()
