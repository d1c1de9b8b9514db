// Pseudo-random numbers that are the same on every machine and with every standard library: the order of the
// data is part of a run's identity. The standard's distributions and std::shuffle are not so fixed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace steppe::data {

// SplitMix64's output function: a bijection of 64-bit words in which every input bit reaches every output
// bit.
constexpr uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
  word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
  return word ^ (word >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ULL;

class FixedRandom {
 public:
  // `stream` keeps sequences of one seed apart (an epoch).
  FixedRandom(uint64_t seed, uint64_t stream) : state_(mix(seed + kGolden) ^ mix(mix(stream + kGolden))) {}

  uint64_t next() { return mix(state_ += kGolden); }

  // In [0, bound), by the high word of a product; the bias, below bound / 2^64, does not matter here.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * bound) >> 64);
  }

 private:
  uint64_t state_;
};

// Fisher-Yates.
template <class T>
void fixed_shuffle(std::vector<T>& values, FixedRandom& random) {
  for (uint64_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

}  // namespace steppe::data
