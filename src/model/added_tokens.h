// Tokens that are found in the text itself, before it is cut into pieces: "<|eot_id|>" and the
// like.
//
// Threads: const members are safe from many threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "topkv/types.h"

namespace topkv {

class AddedTokens {
 public:
  /// Called with text that is no added token (token = -1), or with an added token (text is empty).
  using PartFn = std::function<void(std::string_view text, Token token)>;

  /// strip_left, strip_right: the token takes the white space on that side with it. Of two tokens
  /// with the same content the first counts. REQUIRES: content is not empty.
  void add(std::string_view content, Token token, bool strip_left, bool strip_right);

  /// Cuts the text at the added tokens: of those that begin leftmost, the longest.
  /// REQUIRES: text is well-formed UTF-8. Gives no empty text.
  void split(std::string_view text, const PartFn& part) const;

 private:
  struct Entry {
    Token token = -1;
    bool strip_left = false;
    bool strip_right = false;
  };
  struct Match {
    std::size_t bytes = 0;  // 0: none
    std::int32_t entry = -1;
  };
  Match longest_at(std::string_view text) const;

  // A trie over bytes. Node 0 is the root; its children are looked up in an array, for speed.
  std::array<std::int32_t, 256> roots_ = {};               // 0: no child
  std::unordered_map<std::uint64_t, std::int32_t> edges_;  // node * 256 + byte -> node
  std::vector<std::int32_t> entry_of_ = {-1};              // per node, -1: no token ends here
  std::vector<Entry> entries_;
};

}  // namespace topkv
