// Indexed files for the tests, written field by field from the format in indexed_dataset.h.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "steppe/base/temporary_folder.h"

namespace steppe::data {

template <class T>
void put(std::ofstream& file, T value) {
  file.write(reinterpret_cast<const char*>(&value), sizeof value);
}

using Documents = std::vector<std::vector<int64_t>>;

struct IndexFields {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  uint8_t dtype_code = 8;
  int64_t first_pointer = 0;
  int64_t extra_bounds = 0;            // announced, not written
  int64_t sequences_per_document = 1;  // each document is cut into this many sequences
};

template <class Token>
void write_indexed(const std::string& prefix, const Documents& documents, const IndexFields& fields) {
  std::ofstream bin(prefix + ".bin", std::ios::binary);
  std::vector<int32_t> lengths;
  std::vector<int64_t> pointers;
  std::vector<int64_t> bounds = {0};
  int64_t at = fields.first_pointer;
  for (const auto& document : documents) {
    const auto parts = static_cast<size_t>(fields.sequences_per_document);
    for (size_t part = 0; part < parts; ++part) {
      const size_t begin = document.size() * part / parts;
      const size_t end = document.size() * (part + 1) / parts;
      for (size_t i = begin; i < end; ++i) put(bin, static_cast<Token>(document[i]));
      lengths.push_back(static_cast<int32_t>(end - begin));
      pointers.push_back(at);
      at += static_cast<int64_t>((end - begin) * sizeof(Token));
    }
    bounds.push_back(static_cast<int64_t>(lengths.size()));
  }
  std::ofstream index(prefix + ".idx", std::ios::binary);
  index.write(fields.magic.data(), static_cast<std::streamsize>(fields.magic.size()));
  put(index, fields.version);
  put(index, fields.dtype_code);
  put(index, static_cast<uint64_t>(lengths.size()));
  put(index, static_cast<uint64_t>(bounds.size() + fields.extra_bounds));
  for (const int32_t length : lengths) put(index, length);
  for (const int64_t pointer : pointers) put(index, pointer);
  for (const int64_t bound : bounds) put(index, bound);
}

inline void write_indexed(const std::string& prefix, const Documents& documents) {
  write_indexed<uint16_t>(prefix, documents, IndexFields{});
}

// Documents of the given lengths whose tokens are 1, 2, 3, … through all of them: each token names its place.
inline Documents numbered_documents(const std::vector<int64_t>& lengths) {
  Documents documents;
  int64_t next = 1;
  for (const int64_t length : lengths) {
    std::vector<int64_t>& document = documents.emplace_back();
    for (int64_t i = 0; i < length; ++i) document.push_back(next++);
  }
  return documents;
}

}  // namespace steppe::data
