// A run from its recipe to its end: data, steps, validation, and the figures of each step. Collective over
// all ranks. The program hands in what belongs to the process: its rank, the store, the log, and how it is
// asked to stop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "steppe/base/log.h"
#include "steppe/model/config.h"
#include "steppe/offload/attention_outputs.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/metrics/planned_memory.h"

namespace steppe::train {

struct Process {
  int rank = 0, world_size = 1, local_rank = 0;
  int local_world_size = 1;  // ranks of this node
  c10::intrusive_ptr<c10d::Store> store;
  bool color = false;
  std::string resolved_recipe;                    // kept in checkpoints
  std::optional<metrics::PlannedMemory> planned;  // on rank 0: what steps are held against
  // offload_config()'s, the same on every rank.
  std::optional<offload::OutputBudgets> attention_output_bytes;
  // 0, or the signal that asks this rank to stop; read once per step, agreed by all ranks.
  std::function<int()> stop_signal = [] { return 0; };
  double seconds_since_signal() const { return since_signal ? since_signal() : 0; }
  std::function<double()> since_signal;
  // Where both are set, a step that would not end within checkpoint.grace of a signal is dropped: the first
  // is called as soon as that is settled, what the training thread throws from then on is of no interest; the
  // second when the step before is saved (or is not: why), to end the process. From another thread.
  std::function<void()> dropped_step;
  std::function<void(int64_t step, const std::string& failure)> leave;
  // This rank got this far; `where` lives forever.
  std::function<void(int64_t step, const char* where)> progress = [](int64_t, const char*) {};
  // A step's figures are where they belong.
  std::function<void(int64_t step)> finished_step = [](int64_t) {};
};

struct Outcome {
  int64_t step = 0;     // the last that was finished
  int stop_signal = 0;  // nonzero: asked to stop before the end
};

class Trainer {
 public:
  // Checks the whole configuration against the model, the layout and the data before anything is allocated on
  // the device or sent to another rank; then allocates the weights, and restores them from the checkpoint
  // that the run goes on from, or initializes them. Throws ValueError naming the key.
  Trainer(const recipe::RunConfig& run, Process process, const Log& log);
  ~Trainer();

  // Trains to training.steps, saving as the recipe says. Rank 0 writes RUN/metrics.jsonl and RUN/tensorboard
  // and shows the status line.
  Outcome run();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace steppe::train
