// The description in a context's file.
#include "src/context/file/file_meta.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(context_description)(const std::uint8_t* data, std::size_t size) {
  fuzz::accepts(
      [&] {
        const topkv::FileMeta meta = topkv::parse_meta(fuzz::text_of(data, size), "c.tkv");
        // What it says can be written, and says the same.
        const std::string text = topkv::write_meta(meta);
        fuzz::require(topkv::write_meta(topkv::parse_meta(text, "c.tkv")) == text,
                      "a description that changes when it is written", text);
      },
      "c.tkv: ");
  return 0;
}
