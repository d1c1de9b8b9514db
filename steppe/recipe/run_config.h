// The configuration of a run: one struct per section of a recipe. A key that no reader asks for is refused:
// fields whose component has not landed keep their defaults.
// Components have configurations of their own, which the trainer fills from these.
//
// Fields are in the order of their keys and carry the same names; a field that only says "as Hugging Face"
// has the meaning of that key in a config.json. Degrees are checked against the number of ranks, and the
// model's sizes against each other, by whoever knows both.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "steppe/recipe/recipe.h"

namespace steppe::recipe {

struct RunSection {
  std::string folder;  // default "runs/NAME"
  std::string name;    // default: the recipe's file name without folder and extension
  bool operator==(const RunSection&) const = default;
};

// [model.rope_scaling], or [model.rope_parameters]; fields that its type does not have stay empty.
struct RopeScaling {
  std::string rope_type;         // "linear", "llama3", "yarn", "default" (none)
  std::optional<double> factor;  // all but "default"
  std::optional<std::int64_t> original_max_position_embeddings;  // llama3 (required), yarn
  std::optional<double> low_freq_factor, high_freq_factor;       // llama3 (required)
  std::optional<double> beta_fast, beta_slow;                    // yarn
  std::optional<double> attention_factor;                        // yarn
  std::optional<double> mscale, mscale_all_dim;                  // yarn
  std::optional<bool> truncate;                                  // yarn
  bool operator==(const RopeScaling&) const = default;
};

// What is set here overrides the config.json; without `config` the model is made of these alone.
struct ModelSection {
  std::optional<std::string> config;  // path of a Hugging Face config.json: random weights
  std::optional<std::string> path;    // Hugging Face folder: config.json and weights
  // As Hugging Face.
  std::optional<std::int64_t> num_hidden_layers;
  std::optional<std::int64_t> hidden_size;
  std::optional<std::int64_t> num_attention_heads;
  std::optional<std::int64_t> num_key_value_heads;
  std::optional<std::int64_t> head_dim;
  std::optional<std::int64_t> intermediate_size;  // of dense layers
  std::optional<std::int64_t> vocab_size;
  std::optional<double> rms_norm_eps;
  std::optional<bool> tie_word_embeddings;
  std::optional<double> rope_theta;
  std::optional<RopeScaling> rope_scaling;
  std::optional<std::int64_t> max_position_embeddings;
  std::optional<std::int64_t> num_experts;
  std::optional<std::int64_t> num_experts_per_tok;
  std::optional<std::int64_t> moe_intermediate_size;
  std::optional<bool> norm_topk_prob;
  std::optional<std::int64_t> first_k_dense_replace;            // leading dense layers; 0: none
  std::optional<std::int64_t> shared_expert_intermediate_size;  // 0: no shared expert
  std::optional<std::string> qk_norm;      // "head", "full" (over the whole width), "none"
  std::optional<double> clip_qkv;          // queries, keys and values are clamped to ±this
  std::string compute_dtype = "bfloat16";  // or "float32": of working weights and activations
  bool operator==(const ModelSection&) const = default;
};

struct RouterSection {
  std::string load_balancing = "none";  // or "expert_bias": a bias per expert, no auxiliary loss
  double bias_update_rate = 0.001;      // added or subtracted per step
  double aux_loss_coeff = 0;  // of the load-balancing loss, per layer (steppe/ops/router/router.h); 0: off
  double z_loss_coeff = 0;    // of the mean squared log-sum-exp of a layer's router logits; 0: off
  bool force_load_balancing = false;  // every expert gets the same load, whatever the router says: for timing
  bool operator==(const RouterSection&) const = default;
};

struct ParallelismSection {
  std::int64_t ulysses_degree = 1;          // D: ranks that share a sequence
  std::int64_t expert_parallel_degree = 1;  // E_p: ranks that hold disjoint experts
  std::int64_t vocab_parallel_degree = 1;   // P: ranks that hold disjoint vocabulary intervals
  bool operator==(const ParallelismSection&) const = default;
};

struct DispatchSection {
  std::string kind = "pipelined_llep";  // or "llep", "ep"
  // Of pipelined_llep:
  std::int64_t token_budget = 4096;        // tokens per rank and chunk
  std::int64_t max_chunks = 10;            // of a layer and micro-batch; wins over the budget
  std::string membership = "strided";      // of tokens in chunks; or "contiguous"
  std::optional<std::int64_t> tile_bytes;  // of expert intermediates at a time; nothing: auto
  double replan_threshold = 1.2;  // a chunk is planned by itself when a rank would receive more than this
                                  // many times an even share; 0: never
  // Of pipelined_llep and llep:
  std::optional<std::int64_t> max_helpers;  // foreign experts a rank may hold; nothing: any number
  double imbalance_threshold = 1.3;         // largest over mean expert load, below which nothing moves
  double max_tokens_factor = 1.0;           // a rank's capacity, in even shares
  std::int64_t min_tokens_per_gemm = 1024;  // smallest piece of an expert that moves
  bool operator==(const DispatchSection&) const = default;
};

struct LossSection {
  std::string kind = "auto";  // "tiled", "ring", "vocab_parallel", "full"; auto: tiled or ring, by a rule
  std::optional<std::int64_t> tile_tokens;  // rows of a rank in a tile; none: from a byte budget
  std::string circulate = "auto";    // what goes round in "ring": "activations", "weights"; auto: the smaller
  double z_loss_coeff = 0;           // adds coeff·(log Σ e^logit)² per token; 0: off
  double logit_softcap = 0;          // logits become cap·tanh(logit/cap); 0: off
  std::int64_t ignore_index = -100;  // a target that does not count
  bool operator==(const LossSection&) const = default;
};

struct ActivationCheckpointSection {
  std::string mode = "full";  // keep layer boundaries only; "selective": attention outputs too, by policy;
                              // "none": keep everything, recompute nothing
  std::optional<std::int64_t> mlp_tile_tokens;  // of dense and shared feed-forwards; nothing: a byte budget
  bool operator==(const ActivationCheckpointSection&) const = default;
};

struct OffloadSection {
  std::string activations = "none";  // or "sco": what the budget holds; "all": an error unless it holds all
  std::int64_t host_budget = 0;      // bytes per node, shared by its ranks
  bool pin_memory = true;
  bool operator==(const OffloadSection&) const = default;
};

// Some parameters are trained unlike the rest.
struct ParameterGroup {
  std::vector<std::string> match;  // globs over parameter names
  std::optional<double> lr, weight_decay;
  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerSection {
  std::string name = "adamw";
  double lr = 0;  // required: the peak of the schedule
  std::array<double, 2> betas{0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;           // of matrices; vectors are not decayed
  double max_grad_norm = 1.0;          // global norm that gradients are clipped to; 0: not clipped
  std::string placement = "resident";  // of masters and moments; "cpu": updated there; "stream": host memory,
                                       // updated on the device bucket by bucket
  std::string gradients = "device";    // or "host"
  std::int64_t bucket_params = 100'000'000;  // of "stream"
  std::int64_t slots = 2;                    // of "stream": buckets on the device at a time
  std::string moments_dtype = "float32";     // or "bfloat16", which changes numerics
  std::vector<std::string> freeze;           // globs over parameter names
  std::vector<ParameterGroup> groups;
  bool operator==(const OptimizerSection&) const = default;
};

struct SchedulerSection {
  std::string type = "cosine";    // or "constant", "linear", "wsd" (warm-up, stable, decay)
  std::int64_t warmup_steps = 0;  // linear from 0; a recipe may give a fraction of training.steps
  std::int64_t decay_steps =
      0;  // from the peak to the minimum: right after warm-up (cosine, linear), or at the
          // end of the run (wsd). auto: all that warm-up leaves; wsd: a tenth of the run
  std::string decay_type = "linear";  // of wsd; or "cosine"
  double min_lr_ratio = 0;            // the minimum, as a share of the peak
  bool operator==(const SchedulerSection&) const = default;
};

struct TrainingSection {
  // Optimizer steps of the whole run. Given, or as many as `epochs` takes: one of the two.
  std::int64_t steps = 0;
  std::optional<double> epochs;       // times that the data is read
  std::int64_t seq_length = 0;        // required: tokens of a packed sequence
  std::int64_t micro_batch_size = 1;  // sequences of a Ulysses group at a time
  // Exactly one of the two is set; the second, to 1, when the recipe has neither.
  std::optional<std::int64_t> global_batch_size;            // sequences of a step, over all ranks
  std::optional<std::int64_t> gradient_accumulation_steps;  // micro-batches of a step
  std::string gradient_dtype = "float32";                   // of the accumulators
  std::int64_t seed = 42;
  bool deterministic = true;
  std::string on_nonfinite = "stop";  // or "skip": drop the step's update and go on
  bool operator==(const TrainingSection&) const = default;
};

struct TrainingSource {
  std::string path;   // what `prepare` reads; without data.prepared, the prefix of a .bin and .idx pair
  std::string name;   // default: the path's file name without extensions; unique, and a file name itself
  double weight = 1;  // share of the blend, relative to the others'
  std::string type = "auto";  // of the files, for `prepare`
  bool operator==(const TrainingSource&) const = default;
};

struct DataSection {
  std::optional<std::string> prepared;   // folder of NAME.bin and NAME.idx
  std::optional<std::string> tokenizer;  // tokenizer.json or its folder, "bpe:SIZE", "bytes"
  std::string eos = "auto";              // token appended to a document, for `prepare`
  bool packing = true;                   // several documents per sequence
  bool document_mask = true;             // attention stays inside a document
  bool reset_position_ids = true;        // positions restart with each document
  std::string over_length = "split";     // or "truncate", "drop": documents longer than seq_length
  bool shuffle = true;
  double val_split = 0;               // share of the documents held out for validation
  std::vector<TrainingSource> train;  // may be empty: the trainer insists, other commands do not
  bool operator==(const DataSection&) const = default;
};

struct ValidationSet {
  std::string path;  // as in TrainingSource
  std::string name;
  bool operator==(const ValidationSet&) const = default;
};

struct ValidationSection {
  std::int64_t interval = 500;        // training steps between validations; 0: none on the way
  std::optional<std::int64_t> steps;  // batches per set; nothing: all
  bool at_start = true;
  std::vector<ValidationSet> sets;
  bool operator==(const ValidationSection&) const = default;
};

struct CheckpointSection {
  std::string folder;               // default: "checkpoints" in the run's folder
  std::int64_t interval = 500;      // steps between saves; 0: only at the end and on demand
  std::int64_t keep = 2;            // newest ones kept; 0: all
  std::int64_t keep_every = 0;      // steps whose multiples are kept for good; 0: none
  bool first_step = true;           // save after step 1, so that a full disk shows at once
  std::string resume = "auto";      // the newest complete one, if any; "never"
  std::optional<std::string> load;  // checkpoint to start from, instead
  bool load_weights_only = false;
  bool async = true;                        // write while training goes on
  std::optional<std::int64_t> host_budget;  // bytes per node of the asynchronous writer; nothing: auto
  double grace = 25;                        // seconds from a signal to the end
  std::string export_dtype = "bfloat16";
  std::int64_t max_shard_size = 5'000'000'000;  // bytes of a file, of an export
  bool operator==(const CheckpointSection&) const = default;
};

struct LoggingSection {
  std::int64_t interval = 1;  // steps between lines
  std::vector<std::string> report_to{"jsonl", "tensorboard"};
  std::string run_name;       // default: run.name
  std::string moe = "brief";  // or "detailed": loads of every layer and expert
  bool operator==(const LoggingSection&) const = default;
};

struct HardwareSection {
  std::string preset = "auto";                // "H100", "H200", "B200", …; auto: the machine at hand
  std::optional<std::int64_t> device_memory;  // bytes of a device
  std::optional<std::int64_t> host_memory;    // bytes of a node
  std::optional<double> link;                 // bytes per second between host and device, each way
  std::optional<std::int64_t> ranks_per_node;
  std::optional<std::int64_t> threads_per_rank;  // nothing: auto, max(1, ⌊cores ÷ local ranks⌋)
  bool operator==(const HardwareSection&) const = default;
};

struct CommSection {
  double init_timeout = 600;  // seconds until all ranks have met
  double timeout = 300;       // seconds that any other wait may take
  bool operator==(const CommSection&) const = default;
};

struct ProfilerSection {
  std::vector<std::int64_t> steps;
  std::vector<std::int64_t> ranks{0};
  bool operator==(const ProfilerSection&) const = default;
};

struct PlanSection {
  std::string routing_profile = "balanced";  // or "r/h", or a run's metrics.jsonl
  bool allow_unfit = false;                  // start although the plan does not fit
  bool operator==(const PlanSection&) const = default;
};

struct RunConfig {
  RunSection run;
  ModelSection model;
  RouterSection router;
  ParallelismSection parallelism;
  DispatchSection dispatch;
  LossSection loss;
  ActivationCheckpointSection activation_checkpoint;
  OffloadSection offload;
  OptimizerSection optimizer;
  SchedulerSection lr_scheduler;
  TrainingSection training;
  DataSection data;
  ValidationSection validation;
  CheckpointSection checkpoint;
  LoggingSection logging;
  HardwareSection hardware;
  CommSection comm;
  ProfilerSection profiler;
  PlanSection plan;
  bool operator==(const RunConfig&) const = default;
};

// Reads every section, checks what needs neither model nor ranks, and refuses keys that nothing reads.
// ValueError as described in recipe.h.
RunConfig read_run_config(Recipe& recipe);

}  // namespace steppe::recipe
