// What `python -m steppe.data prepare` writes, IndexedDataset reads back. Raw bytes as the tokenizer make the
// expected ids plain. The interpreter and the package's folder come from CMake.
#include <gtest/gtest.h>

#include <cstdlib>

#include "steppe/data/indexed_dataset.h"
#include "steppe/data/test_files.h"

namespace steppe::data {
namespace {

TEST(PythonFiles, ReadBackEqual) {
  const std::string python = STEPPE_PYTHON_FOR_TEST;
  ASSERT_FALSE(python.empty()) << "CMake was not told of a Python";
  TemporaryFolder folder;
  const std::vector<std::string> texts = {"def f(x): return x", "", "a", "zwölf Boxkämpfer"};
  std::filesystem::create_directory(folder / "in");
  Documents expected;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::ofstream(folder / ("in/" + std::to_string(i) + ".txt")) << texts[i];
    if (texts[i].empty()) continue;  // dropped, and reported
    std::vector<int64_t>& ids = expected.emplace_back();
    for (const char c : texts[i]) ids.push_back(static_cast<unsigned char>(c));
    ids.push_back(256);
  }
  const std::string command = "cd '" STEPPE_PYTHON_SOURCES "' && '" + python + "' -m steppe.data prepare '" +
                              (folder / "in") + "' --tokenizer bytes --processes 1 --output '" +
                              (folder / "out") + "' > '" + (folder / "log") + "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream log(folder / "log");
  ASSERT_EQ(status, 0) << std::string(std::istreambuf_iterator<char>(log), {});

  const IndexedDataset set(folder / "out", "out");
  EXPECT_EQ(set.recorded_vocab_size(), 257);
  ASSERT_EQ(set.num_documents(), static_cast<int64_t>(expected.size()));
  for (size_t d = 0; d < expected.size(); ++d) {
    const auto ids = set.document(static_cast<int64_t>(d));
    EXPECT_EQ(std::vector<int64_t>(ids.begin(), ids.end()), expected[d]);
  }
}

}  // namespace
}  // namespace steppe::data
