"""Training on a GPU: losses of the CPU, the same bits twice and with everything offloaded, the planned peak.

    python benchmarks/device_train.py [--build FOLDER] [--steps N] [--tokens N]

Trains a model of 14 million parameters on made-up text: in fp32 on the GPU and on the CPU, in bf16 twice, and
in bf16 with layer inputs, optimizer state and gradients in host memory. Prints what the runs say and what
must hold. Exit status 1 when something does not.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 150  # of a run
APART = 2e-4  # fp32 losses on CPU and GPU: sums of some thousand terms in other orders, over the steps
RECIPE = """
[model]
num_hidden_layers = 4
hidden_size = 256
num_attention_heads = 8
num_key_value_heads = 2
head_dim = 64
vocab_size = 257
num_experts = 16
num_experts_per_tok = 4
moe_intermediate_size = 256

[optimizer]
lr = 0.001

[training]
steps = {steps}
seq_length = {tokens}
global_batch_size = 4

[data]
prepared = "{folder}/prepared"
tokenizer = "bytes"

[[data.train]]
path = "{folder}/text"

[checkpoint]
interval = 0
first_step = false
"""
OFFLOADED = {
    "offload.activations": "sco",
    "offload.host_budget": "1GiB",
    "optimizer.placement": "stream",
    "optimizer.gradients": "host",
    "optimizer.bucket_params": "1e6",
}


def find_program(build: Path) -> Path:
    found = [path for path in build.rglob("steppe") if path.is_file() and os.access(path, os.X_OK)]
    if not found:
        raise SystemExit(f"{build} has no program steppe: build it there first")
    return found[0]


def prepare(folder: Path, steps: int, tokens: int) -> Path:
    text = folder / "text"
    text.mkdir()
    rng = random.Random(1)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "home"]
    for document in range(60):
        count = rng.choice([30, 300, 1500])
        (text / f"{document}.txt").write_text(" ".join(rng.choice(words) for _ in range(count)))
    recipe = folder / "device.toml"
    recipe.write_text(RECIPE.format(steps=steps, tokens=tokens, folder=folder))
    subprocess.run(
        [sys.executable, "-m", "steppe.data", "prepare", recipe, "--processes", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "python")},
        check=True,
    )
    return recipe


class Run:
    """A finished run: its steps' metrics, and what it said."""

    def __init__(self, program: Path, recipe: Path, name: str, on_gpu: bool = True, **settings: str):
        folder = recipe.parent / name
        command = [str(program), "train", str(recipe), "--set", f"run.folder={folder}"]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        environment = dict(os.environ) if on_gpu else os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        print(f"{name}: {' '.join(command[1:])}", flush=True)
        begin = time.monotonic()
        try:
            done = subprocess.run(
                command, env=environment, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired as late:
            raise SystemExit(
                f"{name} was not done in {LIMIT_S} s:\n{(late.stderr or b'').decode()}"
            ) from late
        self.said = done.stderr
        if done.returncode != 0:
            raise SystemExit(f"{name} ended with status {done.returncode}:\n{done.stderr}")
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        self.steps = [step for step in map(json.loads, lines) if step["step"] > 0]
        last = self.steps[-1]
        print(
            f"  {time.monotonic() - begin:.0f} s; last step {last['step_s'] * 1e3:.1f} ms, "
            f"loss {last['loss']:.6f}, peak {max(s['peak_bytes'] for s in self.steps) / 2**20:.1f} MiB",
            flush=True,
        )

    def figures(self) -> list[tuple[float, float]]:
        return [(step["loss"], step["grad_norm"]) for step in self.steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build-cuda")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=2048, help="of a sequence; a step has four")
    arguments = parser.parse_args()
    program = find_program(arguments.build)
    held = True

    def check(holds: bool, text: str) -> None:
        nonlocal held
        held = held and holds
        print(f"  {'ok ' if holds else 'NOT'} {text}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        recipe = prepare(Path(folder), arguments.steps, arguments.tokens)
        fp32, bf16 = {"model.compute_dtype": "float32"}, {"model.compute_dtype": "bfloat16"}
        first = Run(program, recipe, "bf16", **bf16)
        print(first.said)
        check("on CUDA" in first.said, "the run is on the GPU")
        check("that the plan guarantees" not in first.said, "its peak is within the plan's")
        check(
            Run(program, recipe, "bf16-again", **bf16).figures() == first.figures(),
            "bf16: loss and gradient norm have the same bits the second time",
        )
        check(
            Run(program, recipe, "bf16-offloaded", **bf16, **OFFLOADED).figures() == first.figures(),
            "and the same with boundaries, optimizer state and gradients in host memory",
        )
        loose = Run(program, recipe, "bf16-loose", **bf16, **{"training.deterministic": "false"})
        seconds = [min(step["step_s"] for step in run.steps) for run in (first, loose)]
        print(f"  training.deterministic costs {seconds[0] / seconds[1] - 1:.1%} of a step here")
        on_gpu = Run(program, recipe, "fp32", **fp32)
        on_cpu = Run(program, recipe, "fp32-cpu", on_gpu=False, **fp32)
        apart = max(abs(a["loss"] - b["loss"]) for a, b in zip(on_gpu.steps, on_cpu.steps, strict=True))
        check(apart <= APART, f"fp32: losses on GPU and CPU lie {apart:.1e} apart (at most {APART:.0e})")
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
