"""The safetensors package's side of safetensors_test.

write FILE     tensors of every floating dtype, and as "fp32.NAME" what torch makes of each in fp32
copy IN OUT    reads a file and writes it again
"""

import sys

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def write(path: str) -> None:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    # Subnormals of half precision, its largest value, and what is not finite.
    edges = torch.tensor([0.0, -0.0, 6e-8, -3e-5, 65504.0, float("inf"), float("-inf"), float("nan"), 1e-7])
    tensors = {
        "ids": torch.arange(-3, 4, dtype=torch.int32),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(2.5),
    }
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        tensors[name] = values.to(dtype)
        tensors[f"{name}.edges"] = edges.to(dtype)
        tensors[f"fp32.{name}"] = values.to(dtype).float().clone()
        tensors[f"fp32.{name}.edges"] = edges.to(dtype).float().clone()
    # Every half there is.
    tensors["halves"] = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
    tensors["fp32.halves"] = tensors["halves"].float()
    save_file(tensors, path, metadata={"format": "pt", "note": "zwölf"})


def copy(source: str, target: str) -> None:
    with safe_open(source, "pt") as file:
        metadata = file.metadata()
    save_file(load_file(source), target, metadata=metadata)


if __name__ == "__main__":
    {"write": write, "copy": copy}[sys.argv[1]](*sys.argv[2:])
