// Bits of a large context's file, flipped one at a time anywhere in it: each must be told. What a
// flip can touch is checked as verify_context checks it: for the header, the table, the description
// and what is 0 between sections, all that opening does; for a section, the checksum of the block
// that the bit is in. Of every thousandth flip all of verify_context runs.
//   context_flips_bench [flips] [tokens] [folder]
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "bench/random_context.h"
#include "src/context/file/open_context.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Context> context_of(std::int64_t tokens) {
  return random_context({.layers = 16, .q_heads = 8, .kv_heads = 8, .head_dim = 128}, tokens, 1);
}

template <class Work>
bool is_told(const Work& work) {
  try {
    work();
  } catch (const FileError&) {
    return true;
  }
  return false;
}

int run(std::int64_t flips, std::int64_t tokens, const fs::path& folder) {
  fs::create_directories(folder);
  const fs::path path = folder / "c.tkv";
  save_context(*context_of(tokens), path);
  verify_context(path);
  const OpenContext whole(path);
  const int file = ::open(path.c_str(), O_RDWR);
  const auto size = static_cast<std::uint64_t>(whole.file().bytes());
  std::vector<std::byte> block(static_cast<std::size_t>(FileTable::block));
  std::mt19937_64 random(7);
  std::int64_t in_sections = 0;
  std::int64_t elsewhere = 0;
  std::int64_t by_all = 0;
  std::int64_t missed = 0;
  const auto flip = [&](std::int64_t at, int bit) {
    unsigned char byte = 0;
    if (::pread(file, &byte, 1, at) != 1) throw std::runtime_error("cannot read");
    byte = static_cast<unsigned char>(byte ^ (1U << bit));
    if (::pwrite(file, &byte, 1, at) != 1) throw std::runtime_error("cannot write");
  };
  const auto begun = std::chrono::steady_clock::now();
  for (std::int64_t n = 0; n < flips; ++n) {
    // One in a hundred where a file is not rows and codes: these bytes are few.
    const auto front = static_cast<std::uint64_t>(whole.table().sections[1].at);
    const auto at = static_cast<std::int64_t>(random() % (n % 100 == 0 ? front : size));
    const int bit = static_cast<int>(random() % 8);
    flip(at, bit);
    const auto section = std::ranges::find_if(whole.table().sections, [&](const Section& one) {
      return at >= one.at && at < one.at + one.bytes && one.kind != SectionKind::meta;
    });
    bool told = false;
    if (n % 1000 == 999) {
      ++by_all;
      told = is_told([&] { verify_context(path); });
    } else if (section == whole.table().sections.end()) {
      ++elsewhere;
      told = is_told([&] { const OpenContext opened(path); });
    } else {
      ++in_sections;
      told = is_told([&] {
        read_block(whole.file(), whole.table(), *section, (at - section->at) / FileTable::block,
                   block.data());
      });
    }
    flip(at, bit);
    if (told) continue;
    ++missed;
    fmt::print("bit {} of byte {} was not told\n", bit, at);
  }
  ::close(file);
  verify_context(path);  // all were put back
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  fmt::print(
      "{} bits of a file of {} bytes with {} sections flipped in {:.0f} s: {} in sections, {} "
      "elsewhere, {} checked by all of verify; {} were not told\n",
      flips, size, whole.table().sections.size(), took.count(), in_sections, elsewhere, by_all,
      missed);
  fs::remove_all(folder);
  return missed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace topkv

int main(int count, char** arguments) {
  const std::int64_t flips = count > 1 ? std::atoll(arguments[1]) : 1000;
  const std::int64_t tokens = count > 2 ? std::atoll(arguments[2]) : 512;
  const std::filesystem::path folder =
      count > 3 ? arguments[3]
                : std::filesystem::temp_directory_path() / fmt::format("flips-{}", ::getpid());
  return topkv::run(flips, tokens, folder);
}
