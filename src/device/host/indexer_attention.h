// Attention of layers with a trained indexer (AttentionShape::indexer), in prefills and in
// sessions.
#pragma once

#include <cstdint>
#include <vector>

#include "index/trained/choose_keys.h"
#include "src/attention/query_view.h"
#include "src/store/row_store.h"
#include "topkv/attention.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// Throws InvalidArgument for index queries or weights of a step that are not finite. first: the
/// position of its first token.
void check_index_queries(const AttentionShape& shape, const AttentionStep& step,
                         std::int64_t first);

/// Chooses the rows of tokens and attends them. It keeps the choices that later layers attend, too,
/// until these layers have the tokens. One thread at a time.
class IndexerAttention {
 public:
  /// `shape` outlives it.
  explicit IndexerAttention(const AttentionShape& shape)
      : shape_(shape), choices_(static_cast<std::size_t>(shape.layers)) {}
  IndexerAttention(const IndexerAttention&) = delete;  // it points to its owner's shape
  IndexerAttention& operator=(const IndexerAttention&) = delete;

  /// Keeps the choices that another one keeps. REQUIRES: an equal shape.
  void copy_choices(const IndexerAttention& other) { choices_ = other.choices_; }

  /// The rows and index keys of a text: of its beginning, if that is frozen, and of all tokens
  /// after that.
  struct Rows {
    const RowStore* before = nullptr;  ///< null: `store` has all
    const RowStore& store;
  };
  struct Work {
    std::int64_t rows = 0;  ///< rows that were attended, summed over query heads
    double choosing_seconds = 0;
  };

  /// Attends tokens of a layer with an indexer, whose rows and index keys are in the store. Writes
  /// their partials to out, [tokens, q_heads]; out.out may be the queries. step: gives the layer,
  /// and index queries and weights of the tokens. Returns what was done. The result of a token does
  /// not depend on the other tokens. Takes several threads.
  ///
  /// REQUIRES: for a layer that attends the choice of an earlier layer, that layer has attended the
  /// same tokens.
  Work attend(const AttentionStep& step, const TokenQueries& queries, const Rows& rows,
              PartialView out);

 private:
  /// Returns whether a later layer attends the choice of a layer.
  bool is_shared(std::int64_t layer) const;
  /// Forgets the choices of tokens that all layers have, and of tokens from `first` on.
  void forget(std::int64_t layer, std::int64_t first, const Rows& rows);
  std::int64_t attend_choice(std::int64_t layer, const TokenQueries& queries, const Rows& rows,
                             const KeyChoice& choice, PartialView out) const;

  const AttentionShape& shape_;
  std::vector<KeyChoice> choices_;  // per layer that chooses
};

}  // namespace topkv
