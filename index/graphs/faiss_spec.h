// What follows "faiss:" in a spec: a factory string of FAISS and our options behind a semicolon.
//
//   faiss:IVF4096,SQ8;nprobe=32     faiss:HNSW32;ef=128,efc=40     faiss:IVF     faiss:PQ16
//
// FAISS has many more kinds of indices than are taken here, and some of them end the process or
// never come to an end on keys that are few, equal or large: only the kinds below are taken, which
// tests feed with such keys. They are
//
//   CODE            Flat, SQ8, SQ6, SQ4, SQfp16, PQ<parts>, PQ<parts>x<bits>
//   IVF<lists>,CODE the same codes in lists
//   HNSW<links>     a graph over the keys themselves; HNSW<links>,Flat is the same
//
// (A graph over codes has nothing for it: it takes more memory, and where keys are equal FAISS
// spends 15 ms on each.)
//
// Ours are: "IVF" without a number, whose number of lists follows the number of keys, and "IVF…"
// without a code, which means SQ8: scores are exact whatever the code (see approximate_index.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace topkv {

struct FaissSpec {
  enum class Code : std::uint8_t { flat, sq8, sq6, sq4, sqfp16, pq };

  Code code = Code::flat;
  std::int64_t parts = 0;  ///< PQ: the parts that a key is cut into
  std::int64_t bits = 0;   ///< PQ: of the code of one part
  bool has_lists = false;  ///< it is an IVF index
  std::int64_t lists = 0;  ///< of an IVF index; 0: their number follows that of the keys
  std::int64_t links = 0;  ///< M of an HNSW index; 0: it is none

  std::int64_t nprobe = 0;  ///< lists read per query; 0: follows k
  std::int64_t ef = 0;      ///< candidates kept by a graph search; 0: follows k
  std::int64_t efc = 40;    ///< candidates examined per inserted key (FAISS's default)

  /// spec: the whole string, for messages; text: what follows "faiss:". Throws InvalidArgument
  /// naming what is known.
  static FaissSpec parse(std::string_view spec, std::string_view text);

  /// Whether FAISS is given keys less their mean (faiss_keys.h): all but float32 copies, whose
  /// products are exact.
  bool centres() const { return links > 0 || has_lists || code != Code::flat; }

  /// The number of lists of an IVF index over so many keys; 0 without lists.
  std::int64_t lists_for(std::int64_t keys) const;

  /// FAISS's factory string; `list_count` in place of the number of lists.
  std::string factory(std::int64_t list_count) const;

  /// The canonical spec, defaults spelled out.
  std::string text() const;
};

}  // namespace topkv
