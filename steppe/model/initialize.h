// Random starting weights that do not depend on the layout.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "steppe/model/weight_unit.h"

namespace steppe::model {

// Writes fp32 values for elements [tensor_begin, tensor_begin + out.size()) of a logical tensor.
using SliceSource =
    std::function<void(const LogicalSlice& slice, int64_t tensor_begin, std::span<float> out)>;

// Fills a unit's masters and working weights from a source of logical tensors, on the host, slice by slice;
// no communication. Elements that no slice covers stay zero. Does nothing on `meta`.
void fill_unit(WeightUnit& unit, const SliceSource& source);

// As fill_unit, from Normal(0, init_std) of a counter-based generator keyed by seed, tensor name and element.
void initialize_unit(WeightUnit& unit, uint64_t seed);

}  // namespace steppe::model
