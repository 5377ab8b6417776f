// Gives targets what was found worth keeping: every file of the folders named, each to the target
// that has the folder's name. In place of libFuzzer's main, so that any compiler builds it and
// every run of the tests has it. The target has to take an input of its folder: else all were
// refused at their first byte, and nothing was tested.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

namespace {

namespace fs = std::filesystem;

int fail(const fs::path& path, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", path.c_str(), why.c_str());
  return 1;
}

int replay(const fs::path& folder) {
  const auto target = topkv::fuzz::targets().find(folder.filename().string());
  if (target == topkv::fuzz::targets().end()) return fail(folder, "no target has this name");
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.is_regular_file()) files.push_back(entry.path());
  if (error) return fail(folder, error.message());
  if (files.empty()) return fail(folder, "no inputs: nothing was tested");
  std::sort(files.begin(), files.end());
  const std::int64_t before = topkv::fuzz::accepted;
  for (const fs::path& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());  // the last one is that which failed
    std::ifstream stream(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    if (!stream.is_open() || stream.bad()) return fail(file, "it cannot be read");
    // Of its own size, so that AddressSanitizer sees where it ends.
    const std::vector<std::uint8_t> input(bytes.begin(), bytes.end());
    target->second(input.data(), input.size());
  }
  const std::int64_t taken = topkv::fuzz::accepted - before;
  if (taken == 0) return fail(folder, "all inputs were refused: what lies behind was not tested");
  std::printf("%s: %zu inputs, %lld calls returned\n", folder.c_str(), files.size(),
              static_cast<long long>(taken));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  int status = argc > 1 ? 0 : fail(argv[0], "no folder of inputs");
  for (int i = 1; i < argc; ++i) status |= replay(argv[i]);
  return status;
}
