// What a spec is understood as. Each kind of index implements this beside its KeyIndex.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "index/common/accelerator.h"
#include "index/common/head_index.h"
#include "index/common/prefill_queries.h"
#include "index/common/row_tail.h"
#include "topkv/index_spec.h"
#include "topkv/key_index.h"

namespace topkv {

class Archive;

/// The queries for which a search chooses rows together.
enum class ChoosesFor : std::uint8_t {
  query,     ///< each query by itself
  group,     ///< the queries of a token's heads
  question,  ///< the queries of all tokens of a step
};

/// What an index can do, known before there is one.
struct IndexTraits {
  /// Whether keys that are added after build are found as well as the keys before it.
  bool grows = false;
  /// Whether a search ever finds a row.
  bool finds = true;
  /// Whether keys that a search leaves out score no more than the keys that it finds, except for
  /// some that it misses. False if pages, clusters or a past decide.
  bool ranks_keys = true;
  /// The queries that a search, and its tail, must be given together. A rule that wants more rows
  /// for one of them wants more rows for all of them.
  ChoosesFor chooses_for = ChoosesFor::query;
  /// Whether the index has a tail.
  bool has_tail = false;
  /// Whether the spec names a tail alone, which finds no rows. make() then gives the index that the
  /// tail needs.
  bool is_tail = false;
  /// Whether the index has codes of keys.
  bool has_codes = false;
  /// Whether building clusters keys.
  bool has_clusters = false;
  /// Whether building takes queries of the prefill, too (IndexFactory::learn).
  bool learns_queries = false;
};

/// The members mean what IndexSpec's do.
class IndexFactory {
 public:
  virtual ~IndexFactory() = default;
  const IndexTraits& traits() const { return traits_; }
  virtual std::string text() const = 0;
  virtual void check(std::int64_t /*dim*/, std::int64_t /*keys*/) const {}
  virtual std::unique_ptr<HeadIndex> make() const = 0;
  /// Whether this index over the same keys will do in place of one that make() gives.
  virtual bool is_served_by(const KeyIndex& index) const { return index.spec() == text(); }
  /// Inserts keys into what make() gave. Throws as KeyIndex::build does.
  virtual void build(KeyIndex& index, const KeyView& keys, const Accelerator& /*accelerator*/,
                     const std::stop_token& stop) const {
    index.add(keys, stop);
    index.build(stop);
  }
  /// Learns from queries of the prefill, if traits().learns_queries. Called after build(), for
  /// every head. Throws as build() does, and InvalidArgument when there are no queries.
  virtual void learn(KeyIndex& /*index*/, const PrefillQueries& /*queries*/,
                     const std::stop_token& /*stop*/) const {}
  /// What remains to be learned of all heads together, when each has learned. Throws Stopped when
  /// that is requested.
  virtual void learn_together(std::span<KeyIndex* const> /*heads*/,
                              const std::stop_token& /*stop*/) const {}
  /// Transfers the tail of an index to or from a file. Reading returns the tail; writing returns
  /// null, and `tail` is what it writes. Throws FileError as HeadIndex::transfer does.
  virtual std::unique_ptr<RowTail> transfer_tail(RowTail* /*tail*/, const KeyIndex& /*index*/,
                                                 const RowsView& /*rows*/,
                                                 Archive& /*archive*/) const {
    return nullptr;
  }
  /// What stands for those of the rows that are not attended, made with an index of this kind over
  /// their keys, which it reads for its life; null where there is no tail. Throws as
  /// KeyIndex::build does.
  virtual std::unique_ptr<RowTail> make_tail(const KeyIndex& /*index*/, const RowsView& /*rows*/,
                                             const Accelerator& /*accelerator*/,
                                             const std::stop_token& /*stop*/) const {
    return nullptr;
  }

 protected:
  explicit IndexFactory(const IndexTraits& traits) : traits_(traits) {}

 private:
  IndexTraits traits_;
};

}  // namespace topkv
