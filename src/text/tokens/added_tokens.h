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

#include "src/text/tokens/keyed_hash.h"
#include "topkv/types.h"

namespace topkv {

class AddedTokens {
 public:
  /// Called with text that is no added token (token = -1), or with an added token (text is empty).
  using PartFn = std::function<void(std::string_view text, Token token)>;

  /// strip_left, strip_right: the token takes the white space on that side with it. Of two tokens
  /// with the same content the first counts. REQUIRES: content is not empty; finish was not called.
  void add(std::string_view content, Token token, bool strip_left, bool strip_right);
  /// To be called once, after the last add.
  void finish();

  /// Cuts the text at the added tokens: of those that begin leftmost, the longest. The time is
  /// linear in the text whatever the tokens. REQUIRES: finish was called; text is well-formed
  /// UTF-8. Gives no empty text.
  void split(std::string_view text, const PartFn& part) const;

 private:
  struct Entry {
    Token token = -1;
    std::uint32_t bytes = 0;
    bool strip_left = false;
    bool strip_right = false;
  };
  struct Match {
    std::size_t begin = 0;
    std::int32_t entry = -1;
  };
  struct EdgeHash {
    std::size_t operator()(std::uint64_t edge) const { return keyed_hash(edge); }
  };

  std::int32_t child(std::int32_t node, char byte) const;
  std::vector<Match> matches(std::string_view text) const;

  // An automaton over bytes that reads the text from its end (Aho and Corasick, "Efficient string
  // matching", 1975): where it stands at a byte tells the longest token that begins there. Node 0
  // is the root; its children are looked up in an array, for speed.
  std::array<std::int32_t, 256> roots_ = {};                         // 0: no child
  std::unordered_map<std::uint64_t, std::int32_t, EdgeHash> edges_;  // node * 256 + byte -> node
  std::vector<std::int32_t> parent_ = {0};
  std::vector<char> byte_ = {0};            // that leads to the node
  std::vector<std::int32_t> fall_ = {0};    // the longest end of the node's bytes that is a node
  std::vector<std::int32_t> entry_ = {-1};  // the longest token that the node's bytes end with
  std::vector<Entry> entries_;
};

}  // namespace topkv
