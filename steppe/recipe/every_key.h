// For tests: a recipe that sets every key, but those that exclude each other.
#pragma once

namespace steppe::recipe {

inline constexpr const char* kEverything = R"(
[run]
name = "trial"
folder = "out/trial"
[model]
config = "models/a/config.json"
num_hidden_layers = 3
hidden_size = 64
num_attention_heads = 4
num_key_value_heads = 2
head_dim = 16
intermediate_size = 96
vocab_size = 1000
rms_norm_eps = 1e-5
tie_word_embeddings = true
rope_theta = 1e6
rope_scaling = {rope_type = "yarn", factor = 4, original_max_position_embeddings = 4096, beta_fast = 32, attention_factor = 1.2, truncate = false}
max_position_embeddings = 16384
num_experts = 8
num_experts_per_tok = 2
moe_intermediate_size = 32
norm_topk_prob = false
first_k_dense_replace = 1
shared_expert_intermediate_size = 48
qk_norm = "none"
clip_qkv = 8.0
compute_dtype = "float32"
[router]
load_balancing = "expert_bias"
bias_update_rate = 0.01
aux_loss_coeff = 0.25
z_loss_coeff = 0.125
force_load_balancing = true
[parallelism]
ulysses_degree = 2
expert_parallel_degree = 4
vocab_parallel_degree = 3
[dispatch]
kind = "llep"
token_budget = 2048
max_chunks = 6
membership = "contiguous"
max_helpers = 2
replan_threshold = 1.5
imbalance_threshold = 1.1
max_tokens_factor = 1.25
min_tokens_per_gemm = 64
[loss]
kind = "ring"
tile_tokens = 256
circulate = "weights"
z_loss_coeff = 1e-4
logit_softcap = 30
ignore_index = -1
[activation_checkpoint]
mode = "none"
[optimizer]
name = "adamw"
lr = 1e-3
betas = [0.8, 0.99]
eps = 1e-6
weight_decay = 0
max_grad_norm = 0.5
placement = "resident"
[[optimizer.groups]]
match = ["*.norm.*"]
lr = 1e-4
weight_decay = 0
[lr_scheduler]
type = "wsd"
warmup_steps = 0.1
decay_type = "cosine"
min_lr_ratio = 0.1
[training]
steps = 500
epochs = 1.5
seq_length = 333
micro_batch_size = 2
global_batch_size = 12
gradient_dtype = "float32"
seed = 7
deterministic = false
on_nonfinite = "skip"
[data]
prepared = "data/prepared"
tokenizer = "bpe:8192"
eos = "<end>"
packing = false
document_mask = false
reset_position_ids = false
over_length = "truncate"
shuffle = false
val_split = 0.05
[[data.train]]
path = "corpus/code.jsonl.gz"
weight = 3
[[data.train]]
path = "corpus/prose/"
name = "books"
type = "text"
[validation]
interval = 50
steps = 10
at_start = false
[[validation.set]]
path = "held_out.txt"
[logging]
interval = 5
report_to = ["jsonl"]
run_name = "first"
moe = "detailed"
[checkpoint]
folder = "out/saves"
interval = 7
keep = 3
keep_every = 14
first_step = false
resume = "never"
load = "out/other"
load_weights_only = true
async = false
host_budget = "4GiB"
grace = 9.5
export_dtype = "float16"
max_shard_size = "2GB"
[hardware]
preset = "H200"
device_memory = "100GiB"
host_memory = "1TiB"
link = "50GB"
ranks_per_node = 4
threads_per_rank = 3
[plan]
routing_profile = "2/8"
allow_unfit = true
[comm]
init_timeout = 60
timeout = 2.5
[profiler]
steps = [1, 20]
ranks = [0, 2]
)";

}  // namespace steppe::recipe
