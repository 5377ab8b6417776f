// A model in two GGUF files: four bytes that say how long the first is, then both files.
#include <algorithm>
#include <cstring>

#include "src/core/format/gguf_file.h"
#include "tests/fuzz/gguf_use.h"
#include "topkv/model.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(gguf_split)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  std::uint32_t length = 0;
  if (size < sizeof length) return 0;
  std::memcpy(&length, data, sizeof length);
  const std::string_view both = fuzz::text_of(data + sizeof length, size - sizeof length);
  const auto first = both.substr(0, length);
  const auto path = folder.write("m-00001-of-00002.gguf", first);
  folder.write("m-00002-of-00002.gguf", both.substr(first.size()));
  const std::string beginning = folder.text();  // either file may be at fault
  const bool opens = fuzz::accepts(
      [&] {
        const auto file = topkv::GgufFile::open(path);
        fuzz::require(file.paths().size() <= 2, "more files than there are");
        fuzz::use_tensors(file, both.size());
      },
      beginning);
  if (!opens) return 0;
  fuzz::accepts([&] { topkv::ModelConfig::load(path); }, beginning);
  fuzz::accepts([&] { topkv::Model::plan(path, {}, {}, {}); }, beginning);
  return 0;
}
