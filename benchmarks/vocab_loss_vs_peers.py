"""The vocabulary loss beside PyTorch's and Cut Cross-Entropy: time and memory of loss and both gradients.

One process of ours, one of theirs, the same input and threads, samples in turns (`steppe bench vocab
--peers`), every kind checked against full logits.

    ./dev bench vocab_loss_vs_peers [--tokens N] [--hidden H] [--vocab V] [--threads N] [--samples N]
"""

import argparse
import json
import os
import subprocess
import sys

from step_vs_transformers import RESULTS, ROOT, git_commit, machine, peers_python

KINDS = ("full", "ring_weights", "tiled")  # on one rank, the others do what these do


def peer_versions() -> dict[str, str]:
    script = (
        "import json, importlib.metadata as m; "
        "print(json.dumps({n: m.version(n) for n in ('torch', 'cut-cross-entropy')}))"
    )
    command = [peers_python(), "-I", "-c", script]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(arguments: argparse.Namespace) -> list[dict]:
    command = [str(ROOT / "build" / "steppe"), "bench", "vocab", "--peers", "--json"]
    for name in ("tokens", "hidden", "vocab", "samples"):
        command += [f"--{name}", str(getattr(arguments, name))]
    for kind in KINDS:
        command += ["--kind", kind]
    environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return [json.loads(line) for line in lines.splitlines()]


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
        "versions": peer_versions(),
        "commit": git_commit(),
        "command": " ".join(["./dev bench vocab_loss_vs_peers", *sys.argv[1:]]),
        "rows": measure(arguments),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "vocab_loss_vs_peers.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / "vocab_loss_vs_peers.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
