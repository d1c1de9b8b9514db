"""What transformers makes of some config.json files: written beside them, for config_test.

For each case NAME: NAME.json as it is given to transformers, and under NAME in expected.json the
configuration as transformers resolves it, the rotary frequencies, and the number of parameters of the model
that it builds.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

KEYS = [
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "tie_word_embeddings",
    "max_position_embeddings",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "initializer_range",
    "mlp_only_layers",
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


def describe(path: Path) -> dict:
    config = Qwen3MoeConfig.from_json_file(path)
    with torch.device("meta"):
        model = Qwen3MoeForCausalLM(config)
    rotary = type(model.model.rotary_emb)(config)  # again, off the meta device
    experts = sum(p.numel() for n, p in model.named_parameters() if ".experts." in n)
    total = sum(p.numel() for p in model.parameters())
    return {
        "config": {key: getattr(config, key) for key in KEYS}
        | {"head_dim": getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads},
        "inverse": rotary.inv_freq.tolist(),
        "attention_factor": rotary.attention_scaling,
        "parameters": total,
        "active_parameters": total - experts + experts * config.num_experts_per_tok // config.num_experts,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    expected = {}
    for name, case in CASES.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps({"model_type": "qwen3_moe"} | case))
        expected[name] = describe(path)
    # As transformers itself saves it.
    Qwen3MoeConfig(**SMALL, rope_parameters=dict(YARN)).save_pretrained(folder)
    expected["config"] = describe(folder / "config.json")
    (folder / "expected.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main()
