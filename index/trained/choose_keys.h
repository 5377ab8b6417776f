// The choice of a trained indexer (IndexerShape): which index keys each token takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// The blocks of index keys that consecutive tokens chose, ascending for each choice of a token.
class KeyChoice {
 public:
  /// Forgets all tokens. Keeps the memory.
  void clear();
  /// Returns the positions of the tokens whose choices are there.
  PositionRange tokens() const { return {first_, first_ + count_}; }
  /// Returns the numbers of the blocks of a token's choice. REQUIRES: tokens() holds the position.
  std::span<const std::int32_t> blocks(std::int64_t position, std::int64_t choice) const;
  /// Makes room for the choices of the tokens behind the last one, or from `first` on if there is
  /// none. All choices of a token have the same number of blocks, sizes[token]. What is thrown
  /// leaves the choices as they were.
  void add(std::int64_t first, std::span<const std::int64_t> sizes, std::int64_t choices);
  /// Returns the place of the blocks of a token's choice, to be written.
  std::span<std::int32_t> slots(std::int64_t position, std::int64_t choice);
  /// Forgets tokens at positions outside of a range.
  void keep(PositionRange positions);

 private:
  std::int64_t first_ = 0;  // position of the first token
  std::int64_t count_ = 0;  // tokens
  std::int64_t choices_ = 1;
  std::vector<std::size_t> begins_ = {0};  // [count + 1]: where the blocks of a token begin
  std::vector<std::int32_t> blocks_;
};

/// The index queries of consecutive tokens.
struct IndexQueries {
  const float* data = nullptr;     ///< [tokens, heads, dim]
  const float* weights = nullptr;  ///< [tokens, heads]; null: all 1
  std::int64_t tokens = 0;
  std::int64_t first = 0;  ///< the position of the first token
};

/// The index keys of a text from number 0 on. They may lie in two arrays: the keys of a context,
/// and the keys of a session after them.
struct IndexKeySpan {
  KeyView keys;
  KeyView more = {};

  std::int64_t count() const { return keys.count + more.count; }
};

/// Returns the most tokens that choose_keys takes at a time, so that their scores take bounded
/// memory. keys: the keys that the last of them sees.
std::int64_t tokens_that_choose(const IndexerShape& shape, std::int64_t keys);

/// Chooses for each token, and adds its choices to `out`. The choices of a token depend neither on
/// the other tokens nor on the number of threads. Takes several threads.
///
/// REQUIRES: at most tokens_that_choose tokens; the keys that the tokens see are there; `out` is
/// empty or ends before the first token.
void choose_keys(const IndexerShape& shape, const IndexQueries& queries, const IndexKeySpan& keys,
                 KeyChoice& out);

/// Writes the positions that a token attends, ascending: the tokens of its blocks up to its own
/// position, and of the unfinished group. blocks: ascending.
void chosen_positions(const IndexerShape& shape, std::int64_t position,
                      std::span<const std::int32_t> blocks, std::vector<std::int64_t>& out);

}  // namespace topkv
