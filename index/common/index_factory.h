// What a spec is understood as. Each kind of index implements this beside its KeyIndex.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "index/common/accelerator.h"
#include "index/common/prefill_queries.h"
#include "index/common/row_tail.h"
#include "topkv/index_spec.h"
#include "topkv/key_index.h"

namespace topkv {

class Archive;

/// Of which queries a search chooses the rows together, from all that these are.
enum class ChoosesFor : std::uint8_t {
  query,     ///< each by itself
  group,     ///< those of a token's heads
  question,  ///< those of all tokens of a step, too
};

/// The members mean what IndexSpec's do.
class IndexFactory {
 public:
  virtual ~IndexFactory() = default;
  virtual std::string text() const = 0;
  virtual bool grows() const { return false; }
  /// Whether a search ever finds a row.
  virtual bool finds() const { return true; }
  virtual void check(std::int64_t /*dim*/, std::int64_t /*keys*/) const {}
  virtual std::unique_ptr<KeyIndex> make() const = 0;
  /// Throws InvalidArgument where the name is that of a tail alone; make() is then what it needs.
  virtual void check_index() const {}
  /// Whether this index over the same keys will do in place of one that make() gives.
  virtual bool is_served_by(const KeyIndex& index) const { return index.spec() == text(); }
  /// Inserts keys into what make() gave. Throws as KeyIndex::build does.
  virtual void build(KeyIndex& index, const KeyView& keys, const Accelerator& /*accelerator*/,
                     const std::stop_token& stop) const {
    index.add(keys, stop);
    index.build(stop);
  }
  /// Whether keys that a search leaves out score no more than those that it finds, but for some
  /// that it misses. Not so where pages, clusters or a past decide.
  virtual bool ranks_keys() const { return true; }
  /// Whether building takes queries of the prefill as well: learn() is then called behind build(),
  /// for every head, and throws what build() does, or InvalidArgument where there are none.
  virtual bool learns_queries() const { return false; }
  virtual void learn(KeyIndex& /*index*/, const PrefillQueries& /*queries*/,
                     const std::stop_token& /*stop*/) const {}
  /// What remains to be learned of all heads together, when each has learned. Throws Stopped when
  /// that is requested.
  virtual void learn_together(std::span<KeyIndex* const> /*heads*/,
                              const std::stop_token& /*stop*/) const {}
  /// Whose queries a search, and its tail, must be given together. (So a rule that asks more rows
  /// for one of them asks for all.)
  virtual ChoosesFor chooses_for() const { return ChoosesFor::query; }
  /// What an index has learned of `keys`, for a file. Reading: index is what make() gave, and
  /// becomes one that is built over them. Throws FileError where what is read cannot be of these
  /// keys.
  virtual void transfer(KeyIndex& index, const KeyView& keys, Archive& archive) const;
  /// Likewise its tail; reading gives one, writing gives null. tail: when writing.
  virtual std::unique_ptr<RowTail> transfer_tail(RowTail* /*tail*/, const KeyIndex& /*index*/,
                                                 const RowsView& /*rows*/,
                                                 Archive& /*archive*/) const {
    return nullptr;
  }
  /// Whether it has codes.
  virtual bool is_coded() const { return false; }
  /// Whether it clusters keys.
  virtual bool is_clustered() const { return false; }
  virtual bool has_tail() const { return false; }
  /// What stands for those of the rows that are not attended, made with an index of this kind over
  /// their keys, which it reads for its life; null where there is no tail. Throws as
  /// KeyIndex::build does.
  virtual std::unique_ptr<RowTail> make_tail(const KeyIndex& /*index*/, const RowsView& /*rows*/,
                                             const Accelerator& /*accelerator*/,
                                             const std::stop_token& /*stop*/) const {
    return nullptr;
  }
};

}  // namespace topkv
