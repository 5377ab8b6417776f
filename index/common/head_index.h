// The index over the keys of one KV head, as contexts and sessions use it. Beside what every
// KeyIndex does, it may leave part of a search to a device, and it is written to files.
//
// An index has the functions of this class that suit it. The defaults belong to an index that does
// not have them: nobody asks which class an index is.
#pragma once

#include <cstdint>
#include <span>

#include "index/common/key_summaries.h"
#include "topkv/key_index.h"

namespace topkv {

class Archive;
class CodesIndex;

class HeadIndex : public KeyIndex {
 public:
  /// Returns this index if it has codes of keys, which a device can scan. Null: it has no codes.
  virtual const CodesIndex* codes_index() const { return nullptr; }

  /// Returns positions of keys that every search scores exactly, ascending.
  virtual std::span<const std::int64_t> rare() const { return {}; }

  /// Returns the key summaries by which a device can choose in the index's place. They are of kind
  /// `none` if only the index can choose. REQUIRES: the index is built.
  virtual KeySummaries key_summaries() const { return {}; }
  /// Returns the most that key_summaries() would be for `keys` keys, without the data.
  virtual KeySummaries planned_key_summaries(std::int64_t /*dim*/, std::int64_t /*keys*/) const {
    return {};
  }
  /// Returns whether a search that may find `allowed` keys finds all of them, so that there is
  /// nothing to choose.
  virtual bool takes_all(std::int64_t allowed, std::int64_t k) const { return allowed <= k; }
  /// Searches as search() does, for the queries of one token, among entries that a device chose by
  /// key_summaries(). The index chooses for itself if these hold too few rows that are allowed.
  virtual void search_given(const QueryBlock& queries, std::int64_t k,
                            const CandidateEntries& /*given*/, SearchResult& result) const {
    search(queries, k, result);
  }

  /// Transfers what the index has learned of `keys` to or from a file. Reading: the index is as
  /// IndexFactory::make gave it, and is built over `keys` afterwards. Throws FileError for bytes
  /// that cannot belong to these keys.
  virtual void transfer(const KeyView& keys, Archive& archive) = 0;
};

}  // namespace topkv
