// What of the gradients is on the device in a phase of the step, beside what persists there: all that are at
// work where accumulators live in host memory (train/gradient_store.h), and those in full or on their way of
// layers whose gradients are sharded (train/gradient_buffer.h).
#pragma once

#include "steppe/plan/budget_sizes.h"

namespace steppe::plan {

// While a layer goes forward, while it goes backward, and at the end of that.
void add_gradients_forward(const Sizes& s, int64_t layer, Terms& terms);
void add_gradients_backward(const Sizes& s, int64_t layer, Terms& terms);
void add_gradients_setting_out(const Sizes& s, int64_t layer, Terms& terms);
void add_gradients_of_head(const Sizes& s, Terms& terms);
void add_gradients_of_embedding(const Sizes& s, Terms& terms);
void add_final_gradients_of_embedding(const Sizes& s, Terms& terms);

// Whether this micro-batch's gradients on the host become final, each as soon as nothing adds to it any more.
bool gradients_become_final(const Sizes& s);

// Scratch in which a unit's gradients are summed over its replicas.
int64_t sum_of_experts(const Sizes& s);
int64_t sum_of_table(const Sizes& s);

}  // namespace steppe::plan
