// When a run saves, and how its ranks agree that a save is whole. Each rank writes its shard on a thread of
// its own; that all have, rank 0 learns from the exchange that ends every step anyway, and publishes. So a
// checkpoint that is written in the background appears at the end of a later step.
//
// A save that fails (disk full, folder read-only or gone) is told with its reason, and training goes on with
// the previous checkpoint untouched; but after the first step, and where the run ends, it is an error.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "steppe/base/log.h"
#include "steppe/base/stream.h"
#include "steppe/checkpoint/background_task.h"
#include "steppe/checkpoint/host_snapshot.h"
#include "steppe/checkpoint/native_manifest.h"
#include "steppe/comm/communicator.h"
#include "steppe/model/weights.h"
#include "steppe/recipe/run_config.h"
#include "steppe/train/trainer.h"

namespace steppe::train {

class Checkpointing {
 public:
  struct Run {
    const recipe::RunConfig& config;
    const Process& process;
    const Log& log;
    model::ModelWeights& weights;
    comm::Communicator& control;
    checkpoint::SavedRun saved;                          // step and tokens are filled in at each save
    std::function<std::array<Event, 2>()> state_events;  // see Step
    std::function<void()> before_publishing = [] {};  // on rank 0, from another thread: metrics to the disk
  };

  // Takes the host memory of the asynchronous writer, if it fits checkpoint.host_budget on every rank.
  // Collective over `control`. `start_step`: the step that the run goes on from.
  Checkpointing(Run run, int64_t start_step);

  // At the end of each step, `step` being the one that was finished; collective, one exchange where nothing
  // is to be done. Saves when one is due: each `interval` steps, after the first, at the last, when somebody
  // touched RUN/save, and when a signal asks the run to stop. Returns that signal, or 0; nothing is under way
  // then, nor after the last step. RuntimeFailure as said above.
  int after_step(int64_t step, int64_t tokens, bool last);

  // By the training thread, before weights or optimizer state change: waits until the copy for the writer is
  // taken, which runs beside the computation of gradients.
  void before_update();
  // How long saves kept the training thread waiting since the last call.
  double take_stall_seconds() { return std::exchange(stall_s_, 0); }

  // For LastSave, on another thread, while the training thread is kept out: this rank's shard of the state as
  // it is, in a folder of its own; and on rank 0, once all have written theirs, the checkpoint. Not
  // collective. Nothing is done where that step is saved already.
  void write_beside(int64_t step);
  void publish_beside(int64_t step, int64_t tokens);
  // How long a save takes: the last one's time, or a guess.
  double save_seconds() const;

 private:
  enum class Phase { kNone, kWriting, kPublishing };

  bool save_is_asked_for() const;
  void choose_writer();
  void begin_save(int64_t step, int64_t tokens);
  // `statuses` of all ranks' tasks, as of one exchange.
  void advance(std::span<const int64_t> statuses);
  void finish_save(int64_t step);
  void publish(const std::string& partial, const std::string& id, const checkpoint::SavedRun& saved);
  void fail();
  bool is_saved(int64_t step) const;

  Run run_;
  int64_t start_step_;
  std::string nonce_;  // the same on all ranks
  int64_t attempt_ = 0;
  int64_t state_bytes_ = 0;
  std::unique_ptr<checkpoint::HostSnapshot> snapshot_;  // none: training waits for the disk
  std::future<void> copied_;
  double stall_s_ = 0;
  Phase phase_ = Phase::kNone;
  int64_t saved_step_;          // the last that was saved, or is being saved
  int64_t required_step_ = -1;  // whose failure ends the run, and is said then
  std::string failure_;         // of the last save
  std::string published_;       // the newest checkpoint that this run knows of
  std::string id_;
  std::atomic<double> write_s_{0}, publish_s_{0};
  checkpoint::BackgroundTask task_;  // last: it uses the rest
};

}  // namespace steppe::train
