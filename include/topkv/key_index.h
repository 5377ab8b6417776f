// An index finds, for a query, the keys with the largest inner product among the keys of one
// (layer, KV head).
//
// The verbs are FAISS's: add keys, build, search. An index is named by one string ("exact",
// "faiss:IVF4096,SQ8", "hnsw:M=16,ef=128"; see index_spec.h).
//
// Ownership: indices that can read keys where they lie do not copy them. The memory behind every
// view handed to add must stay valid and unchanged for the life of the index.
// Threads: search is const and safe from many threads at once. add and build are not, and must
// not overlap a search of the same index; another thread may end them by their stop token, and ask
// how far they are by inserted. Different indices are independent.
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

/// Queries of one search.
struct QueryBlock {
  /// [count, dim] float32, contiguous.
  const float* data = nullptr;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  /// Which positions each query may find: one range per query.
  std::span<const PositionRange> allowed;
  /// So many queries that follow each other are those of one token's heads, with one range, for
  /// methods that choose for all heads of a KV head together.
  std::int64_t group = 1;
  /// What attention multiplies scores by, for methods that weigh heads against each other; 0:
  /// 1 / sqrt(dim).
  float scale = 0;
  /// So many groups that follow each other are those of one question, a step of several tokens, for
  /// methods that choose for all of it together (squeezed); their ranges may differ. Others search
  /// for each token by itself.
  std::int64_t tokens = 1;

  const float* query(std::int64_t i) const { return data + i * dim; }
  float score_scale() const {
    return scale > 0 ? scale : 1 / std::sqrt(static_cast<float>(dim));
  }
};

/// What a search found: for each query up to k positions, best first, ties by lower position.
/// Kept by the caller and reused, so that a search in the decode step does not allocate.
class SearchResult {
 public:
  /// Room for `queries` results of up to k; sets all counts to 0. Allocates only when it grows.
  void reset(std::int64_t queries, std::int64_t k);

  std::int64_t queries() const { return static_cast<std::int64_t>(counts_.size()); }
  std::int64_t k() const { return k_; }
  /// Positions and inner products found for one query; may be fewer than k.
  std::span<const std::int64_t> positions(std::int64_t query) const;
  std::span<const float> scores(std::int64_t query) const;

  /// Takes what another found for `count` queries from number `first` on.
  void copy(const SearchResult& from, std::int64_t first, std::int64_t count);

  /// Goes on with the results of these queries alone (ascending), numbered anew.
  void keep(std::span<const std::int64_t> queries);

  /// For implementations: the k slots of one query, to be filled best first, and how many were.
  std::span<std::int64_t> position_slots(std::int64_t query);
  std::span<float> score_slots(std::int64_t query);
  void set_count(std::int64_t query, std::int64_t count);

 private:
  std::int64_t k_ = 0;
  std::vector<std::int64_t> counts_;
  std::vector<std::int64_t> positions_;
  std::vector<float> scores_;
};

class KeyIndex {
 public:
  virtual ~KeyIndex() = default;
  KeyIndex() = default;
  KeyIndex(const KeyIndex&) = delete;  // an index is large; share it by pointer
  KeyIndex& operator=(const KeyIndex&) = delete;

  /// Adds keys behind those it has: key i of the view gets position size() + i.
  /// REQUIRES for indices that read keys in place: the views of successive calls are one array,
  /// each continuing where the last ended (as the store's rows are). Throws InvalidArgument
  /// otherwise, or when dim or dtype differ from the first call; the index is then as it was.
  /// Before build: keys become searchable with build. After build: they are searchable at once.
  /// Values must be finite: an index that looks at keys as it inserts them throws InvalidArgument
  /// on others, exact never finds such a key.
  ///
  /// add after build, and build, end within about a second of a stop request, with Stopped. When
  /// they throw that, or for want of memory, or what the library beneath could not do, the keys of
  /// the call are not added and those before them wait to be built again.
  void add(const KeyView& keys) { add(keys, {}); }
  virtual void add(const KeyView& keys, const std::stop_token& stop) = 0;

  /// Trains on and inserts the keys added so far. Once. An index of no keys may be built.
  /// Runs on the calling thread and on idle threads of its TBB arena.
  void build() { build({}); }
  virtual void build(const std::stop_token& stop) = 0;

  /// How many keys build and add have inserted: from 0 to size(). Safe from any thread.
  virtual std::int64_t inserted() const = 0;

  /// Up to k positions of the largest q·k within each query's allowed range. k above the number
  /// of allowed keys is clamped. Never -1, never a duplicate. A key whose inner product lies beyond
  /// float32 (infinity less infinity) may be left out.
  /// REQUIRES: built, k > 0, queries.dim == dim, finite queries. Throws InvalidArgument.
  virtual void search(const QueryBlock& queries, std::int64_t k, SearchResult& result) const = 0;

  /// Keys added.
  virtual std::int64_t size() const = 0;
  /// Bytes held beyond the keys read in place.
  virtual std::int64_t memory() const = 0;
  /// Bytes that a search among all keys reads to choose some, for all heads of one token: keys, or
  /// what stands for them; -1: not known, as of graphs and lists.
  virtual std::int64_t bytes_searched() const { return -1; }
  /// Its spec, all defaults spelled out.
  virtual std::string spec() const = 0;
};

/// An empty index, IndexSpec(spec).make(). Throws InvalidArgument as IndexSpec does.
std::unique_ptr<KeyIndex> make_index(std::string_view spec);

}  // namespace topkv
