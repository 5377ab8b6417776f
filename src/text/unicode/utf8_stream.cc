#include "src/core/text/utf8.h"
#include "topkv/tokenizer.h"

namespace topkv {

std::string Utf8Stream::push(std::string_view bytes) {
  pending_.append(bytes);
  std::string_view rest = pending_;
  std::string out;
  while (!rest.empty()) {
    const Utf8Char next = first_utf8_char(rest);
    if (next.kind == Utf8Char::Kind::incomplete) break;
    append_utf8(next.code_point, out);
    rest.remove_prefix(next.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

std::string Utf8Stream::finish() {
  // What is held back is one maximal subpart: push has taken everything before it.
  std::string out;
  if (!pending_.empty()) append_utf8(replacement_character, out);
  pending_.clear();
  return out;
}

}  // namespace topkv
