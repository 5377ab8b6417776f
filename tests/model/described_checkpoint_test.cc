// Weights that a config.json describes, before there are any, beside those that are there.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "src/core/io/files.h"
#include "tests/support/temp_directory.h"
#include "topkv/model.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

const fs::path parity_fixtures = fs::path(TOPKV_SOURCE_DIR) / "tests/fixtures/parity";

std::vector<fs::path> directories_with_weights() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(parity_fixtures)) {
    if (fs::exists(entry.path() / "config.json") && Model::has_weights(entry.path()))
      found.push_back(entry.path());
  }
  return found;
}

TEST(DescribedCheckpoint, TakesWhatTheWeightsTakeThatAreFetchedLater) {
  const std::vector<fs::path> models = directories_with_weights();
  ASSERT_GT(models.size(), 20U);
  for (const fs::path& model : models) {
    SCOPED_TRACE(model.filename());
    const TempDirectory temp;
    temp.write("config.json", read_file(model / "config.json"));
    EXPECT_FALSE(Model::has_weights(temp.path()));
    const DevicePlan there = Model::plan(model, {}, {}, {});
    const DevicePlan described = Model::plan(temp.path(), {}, {}, {});
    if (model.filename() == "gptq-qwen3-moe") {
      // Which of its matrices have inputs in another order is not in config.json.
      EXPECT_GE(described.weights_bytes, there.weights_bytes);
      EXPECT_LE(described.weights_bytes, there.weights_bytes * 102 / 100);
    } else {
      EXPECT_EQ(described.weights_bytes, there.weights_bytes);
    }
    EXPECT_EQ(described.quantised, there.quantised);
    EXPECT_TRUE(described.warnings.empty());
  }
}

}  // namespace
}  // namespace topkv
