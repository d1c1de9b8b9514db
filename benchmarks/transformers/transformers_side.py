"""transformers' side of step_vs_transformers: trains the recipe's model, a step per line of standard input.

Every answer is a JSON line: first the starting state, then loss and seconds of each step. Runs in the peers'
environment. The starting weights are saved into --weights first, where the other side loads them.
"""

import argparse
import json
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def make_model(recipe: dict, experts: str) -> Qwen3MoeForCausalLM:
    keys = {key: value for key, value in recipe["model"].items() if key != "compute_dtype"}
    torch.manual_seed(recipe["training"].get("seed", 42))
    config = Qwen3MoeConfig(
        **keys, use_cache=False, attn_implementation="sdpa", experts_implementation=experts
    )
    return Qwen3MoeForCausalLM(config).train()


def make_optimizer(model: torch.nn.Module, recipe: dict) -> torch.optim.AdamW:
    section = recipe["optimizer"]
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": section.get("weight_decay", 0.1)},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=section["lr"],
        betas=tuple(section.get("betas", (0.9, 0.95))),
        eps=section.get("eps", 1e-8),
        fused=True,
    )


def answer(**fields) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--tokens", type=Path, required=True, help="int32 rows of seq_length + 1")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--experts", choices=("eager", "grouped_mm"), required=True)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    arguments = parser.parse_args()
    recipe = tomllib.loads(arguments.recipe.read_text())
    length = recipe["training"]["seq_length"]
    rows = torch.from_numpy(np.fromfile(arguments.tokens, dtype=np.int32).astype(np.int64)).view(
        -1, length + 1
    )

    model = make_model(recipe, arguments.experts)
    model.save_pretrained(arguments.weights)
    if arguments.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = make_optimizer(model, recipe)
    answer(parameters=sum(p.numel() for p in model.parameters()), threads=torch.get_num_threads())

    for step, _ in enumerate(sys.stdin):
        row = rows[step % len(rows)]
        started = time.perf_counter()
        inputs, targets = row[None, :-1].contiguous(), row[None, 1:].contiguous()
        optimizer.zero_grad(set_to_none=True)
        loss = model(input_ids=inputs, labels=targets, shift_labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["optimizer"].get("max_grad_norm", 1.0))
        optimizer.step()
        value = loss.item()
        answer(loss=value, seconds=time.perf_counter() - started)


if __name__ == "__main__":
    main()
