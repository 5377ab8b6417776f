// Which texts of a set a text begins with: a tree over their bytes.
//
// Threads: immutable; safe from many threads.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "topkv/types.h"

namespace topkv {

class PrefixTree {
 public:
  /// REQUIRES: no two texts are alike.
  explicit PrefixTree(std::vector<std::pair<std::string_view, Token>> texts);

  /// Calls give(bytes, token) for each that is not empty and that the text begins with, the
  /// shortest first.
  template <class Give>
  void prefixes(std::string_view text, const Give& give) const {
    std::uint32_t node = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (nodes_[node].token >= 0) give(i + 1, nodes_[node].token);
    }
  }

  /// The token of just this text, which is not empty; -1: none.
  Token find(std::string_view text) const;

 private:
  struct Node {
    std::uint32_t first = 0;  // its children, in the order of their bytes
    std::uint32_t count = 0;
    Token token = -1;
  };

  /// 0: none.
  std::uint32_t child(std::uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;           // level by level
  std::vector<unsigned char> bytes_;  // that lead to them
  std::array<std::uint32_t, 256> roots_ = {};
};

}  // namespace topkv
