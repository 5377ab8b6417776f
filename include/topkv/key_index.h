// An index over keys: for a query it finds the keys with the largest inner product, among the keys
// of one layer and KV head.
//
// The verbs are FAISS's: add keys, build, search. An index is named by one string, such as "exact"
// or "hnsw:M=16,ef=128" (see index_spec.h):
//
//     auto index = topkv::make_index("exact");
//     index->add(keys);                              // a KeyView of keys that stay where they are
//     index->build();
//     topkv::PositionRange all{0, index->size()};
//     topkv::SearchResult result;                    // reused from search to search
//     index->search({.data = query, .count = 1, .dim = dim, .allowed = {&all, 1}}, 10, result);
//     result.positions(0);                           // up to 10 positions, best first
//
// Ownership: an index that can read keys where they lie does not copy them. The memory behind every
// view that add is given must stay valid and unchanged for the life of the index.
//
// Threads: search is const and safe from many threads at once. add and build are for one thread and
// must not overlap a search of that index. Meanwhile another thread may end them by their stop
// token and may call inserted. Different indices are independent.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "topkv/index_spec.h"
#include "topkv/types.h"
#include "topkv/view.h"

namespace topkv {

/// The queries of one search.
///
/// Queries of one token's heads may form a group, and groups of several tokens a question. Methods
/// that choose rows for all heads of a KV head, or for all tokens of a step, need to know which
/// queries belong together. Other indices treat each query by itself.
struct QueryBlock {
  const float* data = nullptr;  ///< [count, dim], float32, contiguous
  std::int64_t count = 0;       ///< queries
  std::int64_t dim = 0;         ///< elements of a query
  /// The positions that each query may find: [count], one range for each query.
  std::span<const PositionRange> allowed;
  /// The number of consecutive queries that belong to one token's heads. The queries of a group
  /// have one range.
  std::int64_t group = 1;
  /// The factor on q·k in attention, for methods that weigh heads against each other. 0 means 1 /
  /// sqrt(dim).
  float scale = 0;
  /// The number of consecutive groups that form one question, which is a step of several tokens.
  /// squeezed chooses for a question as a whole; other methods choose for each token. Groups of a
  /// question may have different ranges.
  std::int64_t tokens = 1;

  /// Returns query number i: [dim].
  const float* query(std::int64_t i) const { return data + i * dim; }
  /// Returns the factor on q·k: scale, or 1 / sqrt(dim) when scale is 0.
  float score_scale() const { return scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(dim)); }
};

/// The result of a search: for each query up to k positions, the best first. When scores are equal,
/// the lower position comes first.
///
/// The caller keeps a result and reuses it, so that a search in the decode step does not allocate.
class SearchResult {
 public:
  /// Makes room for the results of `queries` queries, up to k each, and sets all counts to 0.
  /// Allocates memory only when it grows.
  void reset(std::int64_t queries, std::int64_t k);

  std::int64_t queries() const { return static_cast<std::int64_t>(counts_.size()); }
  std::int64_t k() const { return k_; }
  /// Returns the positions that were found for a query, the best first. They may be fewer than k.
  std::span<const std::int64_t> positions(std::int64_t query) const;
  /// Returns the inner products q·k of a query's positions, in the order of positions().
  std::span<const float> scores(std::int64_t query) const;

  /// Becomes a copy of the results of `count` queries of another result, from number `first` on.
  void copy(const SearchResult& from, std::int64_t first, std::int64_t count);

  /// Drops the results of all other queries and numbers these anew from 0. `queries` is ascending.
  void keep(std::span<const std::int64_t> queries);

  /// For implementations of an index: returns the k slots for a query's positions. Fill them with
  /// the best first, then call set_count.
  std::span<std::int64_t> position_slots(std::int64_t query);
  /// For implementations of an index: returns the k slots for a query's inner products, in the
  /// order of position_slots().
  std::span<float> score_slots(std::int64_t query);
  /// For implementations of an index: sets how many slots of a query were filled.
  void set_count(std::int64_t query, std::int64_t count);

 private:
  std::int64_t k_ = 0;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> positions_;
  std::vector<float> scores_;
};

/// An index over keys, whose inner product with a query it searches for. An application can
/// implement one; make_index makes those that topkv has.
class KeyIndex {
 public:
  virtual ~KeyIndex() = default;
  KeyIndex() = default;
  KeyIndex(const KeyIndex&) = delete;  // an index is large; share it by pointer
  KeyIndex& operator=(const KeyIndex&) = delete;

  /// Adds keys behind the keys that the index has: key i of the view gets position size() + i.
  ///
  /// Before build, added keys become searchable with build. After build, they are searchable at
  /// once.
  ///
  /// An index that reads keys in place takes keys of one array, such as the rows of a context. Each
  /// view must begin where the last view ended. Throws InvalidArgument, and leaves the index as it
  /// was, for another view, and when dim or dtype differ from the first call.
  ///
  /// Keys must be finite. An index that looks at keys while it inserts them throws InvalidArgument
  /// for others. `exact` does not look at them and never finds such a key.
  void add(const KeyView& keys) { add(keys, {}); }
  /// Adds keys as add(keys) does, with a token that ends the work.
  ///
  /// After build, the call ends with Stopped within about a second of a stop request. Memory that
  /// runs out, and a failure of FAISS or hnswlib, end it with an exception, too. The keys of the
  /// call are then not added, and the keys before them wait for another build().
  virtual void add(const KeyView& keys, const std::stop_token& stop) = 0;

  /// Learns from all keys that were added, and inserts them. An index without keys may be built,
  /// too. Throws InvalidArgument when the index is built already. Runs on the calling thread and on
  /// idle threads of its TBB arena.
  void build() { build({}); }
  /// Builds the index as build() does, with a token that ends the work.
  ///
  /// The call ends with Stopped within about a second of a stop request. Memory that runs out, and
  /// a failure of FAISS or hnswlib, end it with an exception, too. The keys then wait for another
  /// build().
  virtual void build(const std::stop_token& stop) = 0;

  /// Returns how many keys build and add have inserted: from 0 to size(). Safe from any thread.
  virtual std::int64_t inserted() const = 0;

  /// Finds, for each query, up to k positions of the largest q·k within its allowed range. Safe
  /// from many threads.
  ///
  /// A k above the number of allowed keys is clamped. A result never has a position twice, and
  /// never -1. It may leave out a key whose inner product is not a number in float32.
  ///
  /// REQUIRES: the index is built, k is above 0, queries.dim is the keys' dim, and the queries are
  /// finite. Throws InvalidArgument otherwise.
  virtual void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const = 0;

  /// Returns the number of keys that were added.
  virtual std::int64_t size() const = 0;
  /// Returns the bytes that the index holds beyond the keys that it reads in place.
  virtual std::int64_t memory() const = 0;
  /// Returns the bytes that a search among all keys reads to choose some, for all heads of one
  /// token. These are keys, or summaries of keys such as codes. -1: unknown, as for graphs and
  /// lists.
  virtual std::int64_t bytes_searched() const { return -1; }
  /// Returns the spec of the index, with all defaults spelled out.
  virtual std::string spec() const = 0;
};

/// Makes an index without keys: IndexSpec(spec).make(). Throws InvalidArgument for an invalid spec
/// and for a tail, which finds no rows.
std::unique_ptr<KeyIndex> make_index(std::string_view spec);

}  // namespace topkv
