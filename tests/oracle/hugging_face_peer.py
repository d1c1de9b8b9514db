"""transformers' side of hugging_face_round_trip_test.

make FOLDER            small models of every family, as transformers saves them, one folder each
compare FOLDER OTHER   each model of FOLDER against the folder of its name in OTHER: configuration, every
                       tensor to the bit, and logits; exits with a list of what differs
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, MixtralConfig, OlmoeConfig, Qwen3MoeConfig

LOGIT_TOLERANCE = 1e-5

COMMON = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 251,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 128,
    "rope_theta": 5e4,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": None,
}
QWEN = COMMON | {"head_dim": 12, "num_experts": 6, "moe_intermediate_size": 20, "intermediate_size": 44}
MIXTRAL = COMMON | {"head_dim": 16, "num_local_experts": 6, "intermediate_size": 20}
OLMOE = COMMON | {"num_experts": 6, "intermediate_size": 20, "clip_qkv": 0.75}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e4}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 5e4}
TIED = {"tie_word_embeddings": True}
# Configuration, dtype, and how it is saved: packed experts are what the model itself computes with.
PACKED = {"save_original_format": False}
SHARDS = {"max_shard_size": "40KB"}
MODELS = {
    "qwen3_moe_float32": (Qwen3MoeConfig(**QWEN, mlp_only_layers=[1]), torch.float32, {}),
    "qwen3_moe_bfloat16": (
        Qwen3MoeConfig(**QWEN, **TIED, rope_parameters=YARN),
        torch.bfloat16,
        PACKED | SHARDS,
    ),
    "qwen3_moe_float16": (Qwen3MoeConfig(**QWEN, norm_topk_prob=True), torch.float16, SHARDS),
    "mixtral_float32": (MixtralConfig(**MIXTRAL, **TIED), torch.float32, SHARDS),
    "mixtral_bfloat16": (MixtralConfig(**MIXTRAL, rope_parameters=LINEAR), torch.bfloat16, PACKED),
    "olmoe_float32": (OlmoeConfig(**OLMOE), torch.float32, PACKED | SHARDS),
    "olmoe_float16": (OlmoeConfig(**OLMOE, **TIED, norm_topk_prob=True), torch.float16, {}),
}


def make(folder: Path) -> None:
    torch.manual_seed(5)
    for name, (config, dtype, how) in MODELS.items():
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            # Norms away from one, and values far enough apart that rounding shows.
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
        model.to(dtype).save_pretrained(folder / name, **how)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def differing(left: dict, right: dict) -> list[str]:
    names = sorted(left.keys() ^ right.keys())
    for name in sorted(left.keys() & right.keys()):
        a, b = left[name], right[name]
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a, b):
            names.append(name)
    return names


def compare(name: str, theirs: Path, ours: Path) -> list[str]:
    faults = []
    packed = any(key.endswith("gate_up_proj") for key in stored(theirs))
    if not packed and (names := differing(stored(theirs), stored(ours))):
        faults.append(f"tensors as stored: {names}")
    models = [AutoModelForCausalLM.from_pretrained(folder, dtype="auto") for folder in (theirs, ours)]
    if names := differing(*(dict(model.state_dict()) for model in models)):
        faults.append(f"tensors as loaded: {names}")
    configs = [json.loads(model.config.to_json_string(use_diff=False)) for model in models]
    for key in sorted(configs[0].keys() | configs[1].keys()):
        if key not in ("_name_or_path", "head_dim") and configs[0].get(key) != configs[1].get(key):
            faults.append(f"{key}: {configs[0].get(key)} became {configs[1].get(key)}")
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        values = [getattr(model.generation_config, key) for model in models]
        if values[0] != values[1]:
            faults.append(f"generation's {key}: {values[0]} became {values[1]}")
    tokens = torch.randint(251, (2, 48), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = [model.float().eval()(tokens).logits for model in models]
    if not (difference := (logits[0] - logits[1]).abs().max().item()) <= LOGIT_TOLERANCE:
        faults.append(f"logits differ by {difference}")
    return [f"{name}: {fault}" for fault in faults]


def main() -> None:
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
        return
    theirs, ours = map(Path, sys.argv[2:])
    faults = [fault for name in MODELS for fault in compare(name, theirs / name, ours / name)]
    if faults:
        raise SystemExit("\n".join(faults))
    print(f"{len(MODELS)} models are the same")


if __name__ == "__main__":
    main()
