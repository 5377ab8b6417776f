// JSON within limits. What it takes, another parser takes.
#include <nlohmann/json.hpp>

#include "src/core/json_file.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts(
      [&] {
        const nlohmann::json json = topkv::parse_json(text, "f.json");
        fuzz::require(topkv::shown(json).size() <= 103, "a value that is shown at length");
        fuzz::require(nlohmann::json::accept(text), "what is no JSON was taken");
      },
      "f.json: ");
  return 0;
}
