// config.json: a model's configuration, and what a plan makes of it without weights.
#include "tests/fuzz/target.h"
#include "topkv/model.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(config)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  folder.write("config.json", fuzz::text_of(data, size));
  const bool loads = fuzz::accepts([&] { topkv::ModelConfig::load(folder.path()); }, folder.text());
  if (!loads) return 0;
  fuzz::accepts([&] { topkv::ModelConfig::load(folder.path(), 1 << 20); }, folder.text());
  fuzz::accepts([&] { topkv::Model::plan(folder.path(), {}, {}, {}); }, folder.text());
  return 0;
}
