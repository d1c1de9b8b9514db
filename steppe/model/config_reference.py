"""What transformers makes of some config.json files: written beside them, for config_test.

For each case NAME: NAME.json as it is given to transformers, and under NAME in expected.json the
configuration as transformers resolves it, the rotary frequencies, and the number of parameters of the model
that it builds. With "written" as second argument: the same of the files in FOLDER/written, into written.json.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig, OlmoeConfig, Qwen3MoeConfig

KEYS = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "rms_norm_eps",
    "tie_word_embeddings",
    "max_position_embeddings",
    "num_experts",
    "num_experts_per_tok",
    "initializer_range",
]

SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 250,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "rope_theta": 1e6,
}

CASES = {
    "defaults": {},
    "head_dim_unsaid": {key: value for key, value in SMALL.items() if key != "head_dim"},
    "small": SMALL,
    "tied_and_mixed": SMALL | {"tie_word_embeddings": True, "mlp_only_layers": [1]},
    "theta_outside": SMALL | {"rope_theta": 1e6},
    "theta_inside": SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "linear": SMALL | {"rope_theta": 5e4, "rope_scaling": {"type": "linear", "factor": 3.0}},
    "llama3": SMALL | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
    "llama3_inside": SMALL
    | {
        "head_dim": 128,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3,
    },
    "yarn": SMALL | {"rope_parameters": YARN},
    "yarn_wide": SMALL
    | {
        "head_dim": 128,
        "rope_parameters": YARN | {"factor": 40.0, "beta_fast": 16, "beta_slow": 2},
    },
    "yarn_factor": SMALL | {"rope_parameters": YARN | {"attention_factor": 1.25}},
    "yarn_mscale": SMALL
    | {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False}},
    "yarn_one_mscale": SMALL | {"rope_parameters": YARN | {"mscale": 0.7}},
    "yarn_trained_length_unsaid": SMALL | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    "yarn_length_beside": SMALL
    | {
        "original_max_position_embeddings": 512,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0},
    },
}


MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 250,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
}
OLMOE = {
    "model_type": "olmoe",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 250,
    "num_experts": 6,
    "num_experts_per_tok": 3,
}
CASES |= {
    "mixtral_defaults": {"model_type": "mixtral"},
    "mixtral": MIXTRAL | {"head_dim": 24, "tie_word_embeddings": True},
    "mixtral_scaled": MIXTRAL | {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "mixtral_alias": {k: v for k, v in MIXTRAL.items() if k != "num_local_experts"} | {"num_experts": 6},
    "olmoe_defaults": {"model_type": "olmoe"},
    "olmoe_as_many_key_heads": OLMOE | {"num_key_value_heads": None},
    "olmoe": OLMOE | {"clip_qkv": 8.0, "norm_topk_prob": True, "num_key_value_heads": 2},
    "olmoe_scaled": OLMOE | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3},
}


def describe(path: Path) -> dict:
    config = AutoConfig.from_pretrained(path)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    rotary = type(model.model.rotary_emb)(config)  # again, off the meta device
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    total = sum(p.numel() for p in model.parameters())
    return {
        "config": {key: getattr(config, key) for key in KEYS}
        | {
            "head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            "moe_intermediate_size": getattr(config, "moe_intermediate_size", config.intermediate_size),
            "norm_topk_prob": getattr(config, "norm_topk_prob", True),
            "mlp_only_layers": getattr(config, "mlp_only_layers", []),
            "clip_qkv": getattr(config, "clip_qkv", None) or 0.0,
        },
        "model_type": config.model_type,
        "intermediate_size": config.intermediate_size,
        "inverse": rotary.inv_freq.tolist(),
        "attention_factor": rotary.attention_scaling,
        "parameters": total,
        "active_parameters": total - experts + experts * config.num_experts_per_tok // config.num_experts,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["written"]:
        described = {path.stem: describe(path) for path in (folder / "written").glob("*.json")}
        (folder / "written.json").write_text(json.dumps(described))
        return
    expected = {}
    for name, case in CASES.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"model_type": "qwen3_moe"} | case))
        expected[name] = describe(path)
    # As transformers itself saves them.
    saved = {
        "qwen3_moe": Qwen3MoeConfig(**SMALL, rope_parameters=dict(YARN)),
        "mixtral": MixtralConfig(**MIXTRAL, head_dim=16, rope_parameters=dict(YARN)),
        "olmoe": OlmoeConfig(**OLMOE, clip_qkv=0.5),
    }
    for name, config in saved.items():
        config.save_pretrained(folder / f"saved_{name}")
        path = (folder / f"saved_{name}" / "config.json").rename(folder / f"saved_{name}.json")
        expected[f"saved_{name}"] = describe(path)
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
