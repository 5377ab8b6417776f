// An application's own index, under a name that works wherever topkv takes a spec.
//
//     class Mine final : public topkv::KeyIndex { … };     // see key_index.h
//
//     topkv::register_index("mine", {.make = [](std::string_view params) {
//       return std::make_unique<Mine>(params);
//     }});
//     const auto indexed = context->with_index("mine:lists=32");
//     topkv::Session session(indexed, {.index = "mine:lists=32"});
//
// The host searches such an index, on a CUDA device too. topkv checks every result, scores the
// positions again by the stored keys and sorts them: the scores and the order that an index gives
// do not matter.
//
// Threads: topkv makes, builds and searches the indices of different KV heads at the same time, on
// threads of its own. All functions of a registration must allow that. An exception that they throw
// ends the call of topkv, which rolls back what it had begun. It arrives as an Error, or as an
// InvalidArgument when it is one, that names the index; std::nested_exception holds the exception
// itself. Stopped and OutOfMemory arrive as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "topkv/attention.h"
#include "topkv/key_index.h"
#include "topkv/view.h"

namespace topkv {

/// The estimates that an IndexTail makes, one for each query.
struct TailEstimate {
  /// Partials over the rows that are estimated: out [queries, dim], lse [queries]. They are empty
  /// when IndexTail::estimate is called. Every number must be finite, except that lse is -infinity
  /// for an empty partial.
  PartialView partial;
  /// The expected squared distance of each estimate from the partial that it stands for: [queries].
  /// All are 0 when IndexTail::estimate is called, which says that estimates are exact.
  /// RetrievalOptions::error and TailFigures::error use it.
  float* squared_error = nullptr;
};

/// An application's estimate of the attention over the rows that are not attended.
class IndexTail {
 public:
  virtual ~IndexTail() = default;
  IndexTail() = default;
  IndexTail(const IndexTail&) = delete;  // it is large; share it by pointer
  IndexTail& operator=(const IndexTail&) = delete;

  /// Estimates, for each query, the attention over the rows in its allowed range that are not in
  /// `taken`.
  ///
  /// taken: the positions that are attended, ascending, for each query. scale: the factor on q·k.
  /// softcap: above 0, a score s becomes softcap * tanh(s / softcap). Called from many threads at
  /// once.
  virtual void estimate(const QueryBlock& queries,
                        std::span<const std::span<const std::int64_t>> taken, float scale,
                        float softcap, const TailEstimate& out) const = 0;

  /// Returns the bytes that the tail holds beyond the rows and its index.
  virtual std::int64_t memory() const { return 0; }
};

/// An application's index: how it is made, and what it can do.
struct IndexRegistration {
  /// Makes an index without keys, for the keys of one layer and KV head. params: the text after the
  /// colon of the spec, or "". It is called whenever a spec is parsed, and for each KV head, so it
  /// should be quick. Throw InvalidArgument for params that are not understood.
  ///
  /// KeyIndex::spec of the index must return a spec of this name with all defaults spelled out. A
  /// spec that it returned must make an index with an equal one.
  std::function<std::unique_ptr<KeyIndex>(std::string_view params)> make = {};
  /// Whether keys that are added after build are found as well as the keys before it
  /// (IndexSpec::grows). The index may then be built while a prefill goes on.
  bool grows = false;
  /// Whether a search finds the keys of the largest inner products, except for a few that it
  /// misses. Tails then give no row that was not found a larger score than the rows that were.
  bool ranks_keys = false;
  /// Makes the index's own tail. index: what `make` returned, over the keys of `rows`. Both outlive
  /// the tail. Null: the index has no tail; `mean` and other tails go beside it.
  std::function<std::unique_ptr<IndexTail>(const KeyIndex& index, const RowsView& rows)> make_tail =
      {};
  /// Returns what a built index has learned of its keys, for a context's file. Called several times
  /// for a file, it must return equal bytes. Null: files keep nothing, and loading builds the index
  /// again.
  std::function<std::vector<std::byte>(const KeyIndex& index)> save = {};
  /// Makes an index as `make` returned it equal to the one that was saved. keys: equal to the keys
  /// that it had then; they outlive the index.
  ///
  /// The file has a checksum, which finds damage but not malice: check the bytes, and throw
  /// InvalidArgument for invalid ones. Needed if and only if there is `save`.
  std::function<void(KeyIndex& index, const KeyView& keys, std::span<const std::byte> saved)> load =
      {};
};

/// Registers an index of the application. From then on "NAME" and "NAME:params" are specs: for
/// IndexSpec, make_index, Context::with_index, sessions, and contexts in files. Any thread may call
/// it at any time.
///
/// name: a letter, followed by at most 63 letters, digits, '-' and '_'. Letters are ASCII. Throws
/// InvalidArgument for another name, for the name of an index or tail of topkv, for a name that is
/// registered, and for a registration without `make` or with only one of `save` and `load`.
void register_index(std::string_view name, IndexRegistration registration);

/// Forgets a registered index. Contexts that have the index keep it. Returns false when no index
/// with this name is registered. Any thread may call it at any time.
bool unregister_index(std::string_view name);

/// Writes vectors of a view as float32: out, [vectors.count, vectors.dim]. Keys and values may have
/// any dtype.
void to_float(const KeyView& vectors, float* out);

/// Writes the inner products of one query with some keys: scores[i] = query · keys[positions[i]].
/// query: [keys.dim]. REQUIRES: positions are within the view.
void score_keys(const float* query, const KeyView& keys, std::span<const std::int64_t> positions,
                float* scores);

}  // namespace topkv
