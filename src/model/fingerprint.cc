// Model::fingerprint: what rows depend on, known by a few megabytes of the files.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/core/format/gguf_file.h"
#include "src/core/io/checksum.h"
#include "src/core/io/mapped_file.h"
#include "src/core/io/open_file.h"
#include "src/model/model_impl.h"
#include "src/model/weights/safetensors.h"
#include "src/text/files/chat_template_files.h"

namespace topkv {
namespace {

constexpr std::int64_t whole_bytes = 1 << 20;  // files of up to so many are read whole
constexpr std::int64_t piece_bytes = 4096;
constexpr std::int64_t pieces = 256;

/// Length, beginning and pieces spread evenly: what tells checkpoints apart, whose weights all
/// differ where a training step has been made.
std::uint64_t sampled(const std::filesystem::path& path) {
  const ReadableFile file(path);
  std::string bytes(static_cast<std::size_t>(std::min(file.bytes(), whole_bytes)), '\0');
  file.read(bytes.data(), std::ssize(bytes), 0);
  if (file.bytes() > whole_bytes) {
    std::string piece(piece_bytes, '\0');
    for (std::int64_t i = 1; i <= pieces; ++i) {
      const std::int64_t at =
          static_cast<std::int64_t>(static_cast<double>(file.bytes() - piece_bytes) *
                                    static_cast<double>(i) / static_cast<double>(pieces));
      file.read(piece.data(), piece_bytes, at);
      bytes += piece;
    }
  }
  bytes += fmt::format(" {}", file.bytes());
  return checksum(bytes.data(), std::ssize(bytes));
}

}  // namespace

std::string Model::fingerprint() const {
  const Impl& impl = *impl_;
  std::vector<std::filesystem::path> files;
  if (is_model_file(impl.directory)) {
    files = GgufFile::open(impl.directory).paths();
  } else {
    // As loading finds them: what else lies in the directory is not the model's.
    files = SafeTensors::open(impl.directory).files();
    for (const char* name : {"config.json", "tokenizer.json"}) {
      if (const auto path = impl.directory / name; file_exists(path)) files.push_back(path);
    }
    for (auto& path : chat_template_sources(impl.directory)) files.push_back(std::move(path));
  }
  std::ranges::sort(files);
  std::string all;
  for (const auto& path : files) all += fmt::format("{:016x} ", sampled(path));
  if (!impl.indexer_path.empty())
    all += fmt::format("indexer {:016x} ", sampled(impl.indexer_path));
  // What is decided while loading, too.
  all += fmt::format("{} {}", name_of(impl.format), impl.config.rope_scaling.theta_factor);
  for (const double factor : impl.config.rope_scaling.pair_factors)
    all += fmt::format(" {}", factor);
  return fmt::format("{:016x}", checksum(all.data(), std::ssize(all)));
}

}  // namespace topkv
