"""The peers' side of `steppe bench optimizer --peers`: a child process that answers a line with a line.

    optimizer_peers.py PROBLEM

PROBLEM is JSON: folder, params, threads, lr, betas, eps, weight_decay. The folder holds master.bin and
grad.bin, fp32. Answers are JSON:
    (at the start)         {"kinds": […], "threads": n}
    weights_after N KIND   {}; after N steps from master.bin, the weights are in the folder as weights.bin
    time N KIND            {"seconds": …} of N more steps
"""

import json
import os
import sys
import time
from pathlib import Path

# DeepSpeed looks for an accelerator, and builds its operator with whatever compilers it finds.
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # ninja, of this environment

import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam


class Peer:
    def __init__(self, kind: str, problem: dict):
        self.weights = read(problem, "master.bin").requires_grad_()
        self.weights.grad = read(problem, "grad.bin")
        settings = {name: problem[name] for name in ("lr", "betas", "eps", "weight_decay")}
        settings["betas"] = tuple(settings["betas"])
        if kind == "torch fused":
            self.optimizer = torch.optim.AdamW([self.weights], fused=True, **settings)
        else:
            self.optimizer = DeepSpeedCPUAdam([self.weights], adamw_mode=True, **settings)

    def steps(self, count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            self.optimizer.step()
        return time.perf_counter() - start


KINDS = ("torch fused", "DeepSpeedCPUAdam")


def read(problem: dict, name: str) -> torch.Tensor:
    path = str(Path(problem["folder"]) / name)
    return torch.from_file(path, size=problem["params"], dtype=torch.float32).clone()


def main() -> None:
    problem = json.loads(sys.argv[1])
    # Libraries may print: that goes to the error stream, answers to what was the output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(line: dict) -> None:
        print(json.dumps(line), file=answers, flush=True)

    torch.set_num_threads(problem["threads"])
    peers = {kind: Peer(kind, problem) for kind in KINDS}
    answer({"kinds": list(KINDS), "threads": torch.get_num_threads()})
    for line in sys.stdin:
        command, count, kind = line.rstrip("\n").split(" ", 2)
        seconds = peers[kind].steps(int(count))
        if command == "weights_after":
            weights = peers[kind].weights.detach().numpy()
            weights.tofile(Path(problem["folder"]) / "weights.bin")
        answer({"seconds": seconds})


if __name__ == "__main__":
    main()
