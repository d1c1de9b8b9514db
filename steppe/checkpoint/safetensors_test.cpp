#include "steppe/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "steppe/base/error.h"
#include "steppe/base/temporary_folder.h"
#include "steppe/recipe/expect_message.h"

namespace steppe::checkpoint {
namespace {

using recipe::expect_message;

void run_peer(const TemporaryFolder& folder, const std::string& arguments) {
  const std::string python = STEPPE_PYTHON_FOR_TEST;
  ASSERT_FALSE(python.empty()) << "CMake was not told of a Python";
  const std::string command =
      "'" + python + "' '" STEPPE_SAFETENSORS_PEER "' " + arguments + " > '" + (folder / "log") + "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream log(folder / "log");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {});
}

bool same_bits_or_nan(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

TEST(Safetensors, ReadsWhatThePackageWrites) {
  const TemporaryFolder folder;
  ASSERT_NO_FATAL_FAILURE(run_peer(folder, "write '" + (folder / "in.safetensors") + "'"));
  const SafetensorsFile file(folder / "in.safetensors");
  EXPECT_EQ(file.metadata().at("note"), "zwölf");
  EXPECT_EQ(file.read<int32_t>("ids"), (std::vector<int32_t>{-3, -2, -1, 0, 1, 2, 3}));
  EXPECT_EQ(file.at("empty").shape, (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(file.read<float>("empty").empty());
  EXPECT_EQ(file.at("scalar").shape, std::vector<int64_t>{});
  EXPECT_EQ(file.read<float>("scalar"), std::vector<float>{2.5F});
  int compared = 0;
  for (const auto& [name, entry] : file.tensors()) {
    const auto* reference = file.find("fp32." + name);
    if (reference == nullptr) continue;
    SCOPED_TRACE(name);
    const auto expected = file.read<float>("fp32." + name);
    // From the middle too: a rank reads its shard of a tensor.
    for (const int64_t begin : {int64_t{0}, entry.numel / 2, entry.numel}) {
      std::vector<float> got(static_cast<size_t>(entry.numel - begin));
      file.read_floats(name, begin, got);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_TRUE(same_bits_or_nan(got[i], expected[i + begin])) << i << ": " << got[i];
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, 1 << 16);
}

TEST(Safetensors, ThePackageReadsWhatWeWrite) {
  const TemporaryFolder folder;
  const std::vector<float> a = {1.5F, -2, 3e-40F, 0, 7, 8};
  const std::vector<double> b = {1.0 / 3};
  const std::vector<int32_t> c = {1, -1, 2};
  const std::vector<uint16_t> bf16 = {0x3f80, 0xc000};
  const std::vector<TensorToWrite> tensors = {tensor_to_write<int32_t>("c", {3}, c),
                                              tensor_to_write<float>("a \"quoted\"", {2, 3}, a),
                                              tensor_to_write<double>("b", {}, b),
                                              {"half", {2}, Dtype::kBF16, std::as_bytes(std::span(bf16))},
                                              {"none", {0}, Dtype::kF32, {}}};
  const auto path = folder / "out.safetensors", again = folder / "again.safetensors";
  write_safetensors(path, tensors, {{"format", "pt"}, {"made", "here"}});
  ASSERT_NO_FATAL_FAILURE(run_peer(folder, "copy '" + path + "' '" + again + "'"));
  for (const auto& name : {path, again}) {
    const SafetensorsFile file(name);
    EXPECT_EQ(file.tensors().size(), 5U);
    EXPECT_EQ(file.metadata().at("made"), "here");
    EXPECT_EQ(file.read<float>("a \"quoted\""), a);
    EXPECT_EQ(file.at("a \"quoted\"").shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.read<double>("b"), b);
    EXPECT_EQ(file.read<int32_t>("c"), c);
    std::vector<float> half(2);
    file.read_floats("half", 0, half);
    EXPECT_EQ(half, (std::vector<float>{1, -2}));
    EXPECT_EQ(file.at("none").numel, 0);
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST(Safetensors, WrongRequestsAreNamed) {
  const TemporaryFolder folder;
  const auto path = folder / "x.safetensors";
  const std::vector<float> values(6);
  const std::vector<int32_t> ids(2);
  const std::vector<TensorToWrite> tensors = {tensor_to_write<float>("weight", {6}, values),
                                              tensor_to_write<int32_t>("ids", {2}, ids)};
  write_safetensors(path, tensors);
  const SafetensorsFile file(path);
  std::vector<float> out(4);
  expect_message<ValueError>([&] { file.read_floats("weight", 3, out); }, {path, "weight", "[3, 7)", "6"});
  expect_message<ValueError>([&] { file.read_floats("weight", -1, out); }, {"[-1, 3)"});
  expect_message<ValueError>([&] { file.read_floats("weigth", 0, out); },
                             {"no tensor weigth", "it has weight"});
  expect_message<ValueError>([&] { file.read_floats("ids", 0, std::span(out).first(1)); }, {"ids", "I32"});
  expect_message<ValueError>([&] { file.read<double>("weight"); }, {"weight is F32, not F64"});
  expect_message<RuntimeFailure>([&] { SafetensorsFile(folder / "none"); }, {"none", "No such file"});

  const auto bad = [&](std::vector<TensorToWrite> given, std::initializer_list<std::string> parts) {
    expect_message<ValueError>([&] { write_safetensors(folder / "bad", given); }, parts);
    EXPECT_FALSE(std::filesystem::exists(folder / "bad"));
  };
  bad({tensor_to_write<float>("w", {5}, values)}, {"bad", "tensor w has 24 bytes", "5 elements of F32"});
  bad({tensor_to_write<float>("w", {6}, values), tensor_to_write<float>("w", {6}, values)}, {"w is taken"});
  expect_message<RuntimeFailure>([&] { write_safetensors(folder / "no/x", tensors); },
                                 {"cannot create", "no/x"});
}

// A file with the given header and `data_bytes` bytes of data.
std::string damaged(const TemporaryFolder& folder, const std::string& header, size_t data_bytes,
                    int64_t announced = -1) {
  const auto path = folder / "damaged.safetensors";
  std::ofstream file(path, std::ios::binary);
  const uint64_t length = announced >= 0 ? static_cast<uint64_t>(announced) : header.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header << std::string(data_bytes, '\0');
  return path;
}

TEST(Safetensors, DamageIsFoundWhenAFileIsOpened) {
  const TemporaryFolder folder;
  const std::string good =
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}})";
  EXPECT_EQ(SafetensorsFile(damaged(folder, good, 12)).tensors().size(), 2U);
  const auto refused = [&](const std::string& path, std::initializer_list<std::string> parts) {
    expect_message<ValueError>([&] { SafetensorsFile file(path); }, {path});
    expect_message<ValueError>([&] { SafetensorsFile file(path); }, parts);
  };
  const auto with = [&](const std::string& from, const std::string& to, size_t data_bytes = 12) {
    std::string header = good;
    const size_t at = header.find(from);
    EXPECT_NE(at, std::string::npos);
    return damaged(folder, header.replace(at, from.size(), to), data_bytes);
  };
  refused(damaged(folder, good, 11), {"tensor b", "inside the 11 bytes"});  // cut short
  refused(damaged(folder, good, 13), {"accounts for"});                     // something behind
  refused(damaged(folder, good, 0, 1'000'000), {"1000000", "room for"});
  refused(damaged(folder, "", 0, INT64_MAX), {"9223372036854775807"});
  refused(damaged(folder, "{", 0), {"not a JSON object"});
  refused(damaged(folder, "[]", 0), {"not a JSON object"});
  refused(damaged(folder, R"({"__metadata__":{"x":1}})", 0), {"__metadata__.x = 1"});
  refused(with("\"F32\"", "\"F33\""), {"tensor a", "dtype = \"F33\""});
  refused(with("\"shape\":[2],", ""), {"tensor a", "shape = (absent)"});
  refused(with("[2]", "[-2]"), {"tensor a", "shape = [-2]"});
  refused(with("[2]", "[4294967296,4294967296]"), {"tensor a", "shape"});
  refused(with("[2]", "[3]"), {"tensor a", "12 bytes apart"});
  refused(with("[0,8]", "[8,0]"), {"tensor a", "data_offsets"});
  refused(with("[0,8]", "[0,8,8]"), {"tensor a", "data_offsets"});
  refused(with("[8,12]", "[4,8]", 8), {"tensors overlap"});
  refused(with("[8,12]", "[9,13]", 13), {"tensor b begins at byte 9", "belong to no tensor"});
  refused(with("[8,12]", "[18446744073709551600,18446744073709551604]"), {"tensor b", "data_offsets"});
  std::ofstream(folder / "short") << "abc";
  refused(folder / "short", {"has 3 bytes"});
}

}  // namespace
}  // namespace steppe::checkpoint
