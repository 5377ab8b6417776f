// JSON within limits. What it takes, another parser takes.
#include <nlohmann/json.hpp>

#include "src/core/format/json_file.h"
#include "tests/fuzz/target.h"

namespace fuzz = topkv::fuzz;

namespace {

/// Long containers are told by their size.
void check_shown(const nlohmann::json& json) {
  std::string expected = json.dump(-1, ' ', true);
  if (expected.size() > 100) expected = expected.substr(0, 100) + "...";
  const std::string shown = topkv::shown(json);
  const bool counted = json.is_structured() && json.size() > 16;
  fuzz::require(counted ? shown.size() <= 103 : shown == expected,
                "a value that is shown otherwise", shown);
}

}  // namespace

FUZZ_TARGET(json)(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts(
      [&] {
        const nlohmann::json json = topkv::parse_json(text, "f.json");
        check_shown(json);
        fuzz::require(nlohmann::json::accept(text), "what is no JSON was taken");
      },
      "f.json: ");
  return 0;
}
