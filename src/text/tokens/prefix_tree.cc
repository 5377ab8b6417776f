#include "src/text/tokens/prefix_tree.h"

#include <algorithm>
#include <deque>

namespace topkv {

PrefixTree::PrefixTree(std::vector<std::pair<std::string_view, Token>> texts) {
  std::ranges::sort(texts);
  // Of each node that has no children yet: the texts that begin with its bytes, and how many bytes
  // these are.
  struct Range {
    std::size_t begin;
    std::size_t end;
    std::size_t depth;
  };
  std::deque<Range> ranges = {{0, texts.size(), 0}};
  std::size_t most = 1;
  for (const auto& [text, token] : texts) most += text.size();
  nodes_.reserve(most);  // doubling might take three times as much
  bytes_.reserve(most);
  nodes_.emplace_back();
  bytes_.push_back(0);
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    auto [at, end, depth] = ranges.front();
    ranges.pop_front();
    if (at < end && texts[at].first.size() == depth) nodes_[node].token = texts[at++].second;
    nodes_[node].first = static_cast<std::uint32_t>(nodes_.size());
    while (at < end) {
      const auto byte = static_cast<unsigned char>(texts[at].first[depth]);
      std::size_t next = at;
      while (next < end && static_cast<unsigned char>(texts[next].first[depth]) == byte) ++next;
      ++nodes_[node].count;
      nodes_.emplace_back();
      bytes_.push_back(byte);
      ranges.push_back({at, next, depth + 1});
      at = next;
    }
  }
  for (std::uint32_t i = 0; i < nodes_[0].count; ++i) {
    roots_[bytes_[nodes_[0].first + i]] = nodes_[0].first + i;
  }
}

std::uint32_t PrefixTree::child(std::uint32_t node, unsigned char byte) const {
  if (node == 0) return roots_[byte];
  const auto begin = bytes_.begin() + nodes_[node].first;
  const auto end = begin + nodes_[node].count;
  const auto found =
      nodes_[node].count <= 8 ? std::find(begin, end, byte) : std::lower_bound(begin, end, byte);
  return found == end || *found != byte ? 0 : static_cast<std::uint32_t>(found - bytes_.begin());
}

Token PrefixTree::find(std::string_view text) const {
  std::uint32_t node = 0;
  for (const char c : text) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == 0) return -1;
  }
  return nodes_[node].token;
}

}  // namespace topkv
