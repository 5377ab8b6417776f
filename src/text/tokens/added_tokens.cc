#include "src/text/tokens/added_tokens.h"

#include <algorithm>
#include <numeric>

#include "src/text/unicode/white_space.h"

namespace topkv {
namespace {

std::uint64_t edge(std::int32_t node, char byte) {
  return static_cast<std::uint64_t>(node) * 256 + static_cast<unsigned char>(byte);
}

}  // namespace

void AddedTokens::add(std::string_view content, Token token, bool strip_left, bool strip_right) {
  std::int32_t node = 0;
  for (std::size_t i = content.size(); i-- > 0;) {
    const char byte = content[i];
    std::int32_t& next =
        node == 0 ? roots_[static_cast<unsigned char>(byte)] : edges_[edge(node, byte)];
    if (next == 0) {
      next = static_cast<std::int32_t>(entry_.size());
      parent_.push_back(node);
      byte_.push_back(byte);
      fall_.push_back(0);
      entry_.push_back(-1);
    }
    node = next;
  }
  std::int32_t& entry = entry_[static_cast<std::size_t>(node)];
  if (entry >= 0) return;
  entry = static_cast<std::int32_t>(entries_.size());
  entries_.push_back({token, static_cast<std::uint32_t>(content.size()), strip_left, strip_right});
}

/// 0: none.
std::int32_t AddedTokens::child(std::int32_t node, char byte) const {
  if (node == 0) return roots_[static_cast<unsigned char>(byte)];
  const auto next = edges_.find(edge(node, byte));
  return next == edges_.end() ? 0 : next->second;
}

void AddedTokens::finish() {
  // Nodes by their depth, so that those that one falls to are finished before it. (A child is
  // numbered after its parent, but not after all nodes above its own level.)
  std::vector<std::int32_t> depth(entry_.size(), 0);
  for (std::size_t node = 1; node < depth.size(); ++node) {
    depth[node] = depth[static_cast<std::size_t>(parent_[node])] + 1;
  }
  std::vector<std::int32_t> order(entry_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return depth[static_cast<std::size_t>(a)] < depth[static_cast<std::size_t>(b)];
  });
  for (const std::int32_t number : order) {
    const auto node = static_cast<std::size_t>(number);
    if (depth[node] < 2) continue;  // these fall to the root
    std::int32_t fall = fall_[static_cast<std::size_t>(parent_[node])];
    while (fall != 0 && child(fall, byte_[node]) == 0) fall = fall_[static_cast<std::size_t>(fall)];
    fall_[node] = child(fall, byte_[node]);
    if (entry_[node] < 0) entry_[node] = entry_[static_cast<std::size_t>(fall_[node])];
  }
}

/// The longest token at each byte where one begins, from the end of the text to its beginning.
std::vector<AddedTokens::Match> AddedTokens::matches(std::string_view text) const {
  std::vector<Match> found;
  std::int32_t node = 0;
  for (std::size_t at = text.size(); at-- > 0;) {
    std::int32_t next = child(node, text[at]);
    while (next == 0 && node != 0) {
      node = fall_[static_cast<std::size_t>(node)];
      next = child(node, text[at]);
    }
    node = next;
    const std::int32_t entry = entry_[static_cast<std::size_t>(node)];
    if (entry >= 0) found.push_back({at, entry});
  }
  return found;
}

void AddedTokens::split(std::string_view text, const PartFn& part) const {
  std::size_t given = 0;
  std::size_t free = 0;       // the next token may begin here
  std::size_t space_end = 0;  // of the white space that was looked at last
  const std::vector<Match> found = entries_.empty() ? std::vector<Match>() : matches(text);
  for (auto match = found.rbegin(); match != found.rend(); ++match) {
    if (match->begin < free) continue;
    const Entry& entry = entries_[static_cast<std::size_t>(match->entry)];
    std::size_t begin = match->begin;
    std::size_t end = begin + entry.bytes;
    free = end;  // within the space that this one takes, too
    if (entry.strip_left) {
      begin = given < begin ? given + trailing_space(text.substr(given, begin - given)) : given;
    }
    if (entry.strip_right) {
      // Tokens of white space in a long run of it would each look at all the rest.
      if (space_end < end) space_end = end + leading_space(text.substr(end));
      end = space_end;
    }
    if (given < begin) part(text.substr(given, begin - given), -1);
    part({}, entry.token);
    given = end;
  }
  if (given < text.size()) part(text.substr(given), -1);
}

}  // namespace topkv
