"""Trains a small model of one family in transformers, and writes what oracle_test needs to do the same.

Into FOLDER: config.json and model.safetensors (the starting weights, as transformers saves them) and
reference.safetensors with, per step, the batch and the loss, and the gradient of every tensor in the first
step under Steppe's name of it.

The batches are bytes of the Python standard library's own sources. Losses are sums in fp64 of each token's
log-probability in fp64 over the model's fp32 logits: transformers' own mean in fp32 is rounded more coarsely
than the agreement that is tested.
"""

import argparse
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEQUENCES, LENGTH = 2, 128
# The optimizer of the test; oracle_test has the same figures, but for the rate, which it reads.
# At 1e-3 transformers in fp32 stays within 1e-6 of itself in fp64 for all 50 steps; at 3e-3 training is
# unstable enough to magnify roundings to 1e-2.
LR, BETAS, EPS, WEIGHT_DECAY, MAX_GRAD_NORM = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


COMMON = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 256,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
FAMILIES = {
    "qwen3_moe": COMMON
    | {
        "head_dim": 32,
        "intermediate_size": 96,
        "num_experts": 8,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
    "mixtral": COMMON | {"head_dim": 32, "num_local_experts": 8, "intermediate_size": 48},
    # Normalized queries and keys are near one, values near 0.16: all three are clamped, some not.
    "olmoe": COMMON | {"num_experts": 8, "intermediate_size": 48, "norm_topk_prob": False, "clip_qkv": 0.4},
}


def make_model(family: str) -> torch.nn.Module:
    torch.manual_seed(1234)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family]))


def read_corpus(num_bytes: int) -> torch.Tensor:
    """Source files one behind the other, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= num_bytes:
            return torch.frombuffer(text[:num_bytes], dtype=torch.uint8).to(torch.int64)
    raise SystemExit(f"the standard library's sources have fewer than {num_bytes} bytes")


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    parameters = list(model.named_parameters())
    # Norms are vectors; packed experts have three dimensions.
    matrices = [p for _, p in parameters if p.dim() > 1]
    vectors = [p for _, p in parameters if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)


def saved_gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Gradients under Steppe's names, which are Qwen3-MoE's: each expert has tensors of its own."""
    gradients = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad.detach()
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for expert, both in enumerate(gradient):
                gate, up = both.chunk(2, dim=0)
                gradients[f"{stem}{expert}.gate_proj.weight"] = gate.clone()
                gradients[f"{stem}{expert}.up_proj.weight"] = up.clone()
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            for expert, down in enumerate(gradient):
                gradients[f"{stem}{expert}.down_proj.weight"] = down.clone()
        else:
            gradients[name] = gradient.clone()
    return gradients


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=batch[:, :-1]).logits
    log_probabilities = logits.double().log_softmax(dim=-1)
    return -log_probabilities.gather(-1, batch[:, 1:, None]).sum() / batch[:, 1:].numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="qwen3_moe")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    torch.use_deterministic_algorithms(True)

    model = make_model(arguments.family)
    model.save_pretrained(arguments.folder)
    optimizer = make_optimizer(model)
    # One byte more than a row has inputs: its last target.
    corpus = read_corpus(arguments.steps * SEQUENCES * (LENGTH + 1))
    batches = corpus.view(arguments.steps, SEQUENCES, LENGTH + 1)
    reference = {"batches": batches.to(torch.int32), "learning_rate": torch.tensor(LR, dtype=torch.float64)}
    losses = []
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            reference |= {f"grad.{name}": g for name, g in saved_gradients(model).items()}
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
    reference["losses"] = torch.tensor(losses, dtype=torch.float64)
    save_file(reference, arguments.folder / "reference.safetensors")
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {arguments.steps} steps")


if __name__ == "__main__":
    main()
