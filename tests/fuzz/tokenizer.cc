// tokenizer.json, all of it.
#include "tests/fuzz/tokenizer_use.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(tokenizer)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto file = folder.write("tokenizer.json", fuzz::text_of(data, size));
  fuzz::accepts([&] { fuzz::use_tokenizer(file); }, folder.text());
  return 0;
}
