"""The peers' side of `steppe bench vocab --peers`: a child process that answers a line with a line.

    vocab_loss_peers.py FOLDER TOKENS HIDDEN VOCAB DTYPE TILE THREADS

FOLDER holds the input: x.bin, weight.bin (fp32) and targets.bin (int32). Every peer computes the mean loss,
dx and dW. Answers are JSON:
    (at the start)  {"kinds": […], "threads": n, "versions": {…}}
    measure KIND    {"loss": …, "gained_bytes": …}; dx and dW are left in FOLDER as dx.bin and dw.bin, fp32.
                    The bytes are those the process gained at its peak, dx and dW among them.
    time KIND       {"seconds": …}
"""

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from cut_cross_entropy import linear_cross_entropy as cut_cross_entropy
from torch.nn import LinearCrossEntropyOptions
from torch.nn.functional import cross_entropy, linear_cross_entropy

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def peers(tile: int) -> dict[str, Loss]:
    own_chunks = LinearCrossEntropyOptions()
    our_tile = LinearCrossEntropyOptions(batch_chunk_size=tile, chunking_method=None)
    return {
        "torch cross_entropy": lambda x, w, t: cross_entropy(x @ w.T, t),
        "torch linear_ce": lambda x, w, t: linear_cross_entropy(x, w, t, options=own_chunks),
        "the same, our tile": lambda x, w, t: linear_cross_entropy(x, w, t, options=our_tile),
        "cut_cross_entropy": lambda x, w, t: cut_cross_entropy(x, w, t, impl="torch_compile"),
    }


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {field}")


class Problem:
    def __init__(self, folder: Path, tokens: int, hidden: int, vocab: int, dtype: torch.dtype):
        self.folder = folder
        self.x = self._read("x.bin", torch.float32, (tokens, hidden)).to(dtype).requires_grad_()
        self.weight = self._read("weight.bin", torch.float32, (vocab, hidden)).to(dtype).requires_grad_()
        self.targets = self._read("targets.bin", torch.int32, (tokens,)).long()

    def run(self, peer: Loss) -> float:
        self.x.grad = self.weight.grad = None
        loss = peer(self.x, self.weight, self.targets)
        loss.backward()
        return loss.item()

    def measure(self, peer: Loss) -> dict:
        self.run(peer)  # compiles what is compiled
        self.x.grad = self.weight.grad = None
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        before = status_bytes("VmRSS")
        loss = self.run(peer)
        gained = status_bytes("VmHWM") - before
        for name, grad in (("dx.bin", self.x.grad), ("dw.bin", self.weight.grad)):
            grad.float().numpy().tofile(self.folder / name)
        return {"loss": loss, "gained_bytes": gained}

    def time(self, peer: Loss) -> dict:
        start = time.perf_counter()
        self.run(peer)
        return {"seconds": time.perf_counter() - start}

    def _read(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
        size = torch.Size(shape).numel()
        return torch.from_file(str(self.folder / name), size=size, dtype=dtype).reshape(shape).clone()


def main() -> None:
    folder, tokens, hidden, vocab, dtype, tile, threads = sys.argv[1:]
    # Libraries may print: that goes to the error stream, answers to what was the output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(line: dict) -> None:
        print(json.dumps(line), file=answers, flush=True)

    torch.set_num_threads(int(threads))
    kinds = peers(int(tile))
    problem = Problem(Path(folder), int(tokens), int(hidden), int(vocab), getattr(torch, dtype))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "cut-cross-entropy")}
    answer({"kinds": list(kinds), "threads": torch.get_num_threads(), "versions": versions})
    for line in sys.stdin:
        command, kind = line.rstrip("\n").split(" ", 1)
        answer({"measure": problem.measure, "time": problem.time}[command](kinds[kind]))


if __name__ == "__main__":
    main()
