#include "src/text/files/model_file.h"

#include <fmt/format.h>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {

void check_token_length(const std::filesystem::path& file, const std::string& content,
                        std::string_view where) {
  constexpr std::size_t max_token_bytes = 8192;  // in the file; the longest there are have 256
  if (content.size() <= max_token_bytes) return;
  throw FileError(fmt::format("{}: {} has a token of {} bytes, {}; expected at most {}",
                              path_text(file), where, content.size(), shown(content),
                              max_token_bytes));
}

}  // namespace topkv
