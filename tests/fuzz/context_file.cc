// A context's file, whose checksums are mended: header, table and sections.
#include "topkv/context_file.h"

#include "tests/fuzz/context_bytes.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

FUZZ_TARGET(context_file)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  std::string bytes(fuzz::text_of(data, size));
  fuzz::mend_checksums(bytes);
  const auto path = folder.write("c.tkv", bytes);
  const std::string beginning = path.string();
  const auto load = [&](bool mapped) {
    const std::vector<std::string> known = topkv::context_file_info(path).indices;
    topkv::load_context(path, {.mapped = mapped, .indices = known});
  };
  const bool loads = fuzz::accepts([&] { load(false); }, beginning);
  fuzz::accepts([&] { topkv::load_context(path); }, beginning);
  const bool verifies = fuzz::accepts([&] { topkv::verify_context(path); }, beginning);
  fuzz::require(loads || !verifies, "what is verified is not loaded");
  fuzz::accepts([&] { load(true); }, beginning);
  const bool tells = fuzz::accepts([&] { topkv::context_file_info(path); }, beginning);
  fuzz::require(tells || !loads, "what is loaded has no description");
  return 0;
}
