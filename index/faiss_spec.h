// What follows "faiss:" in a spec: a factory string of FAISS and our options behind a semicolon.
//
//   faiss:IVF4096,SQ8;nprobe=32     faiss:HNSW32;ef=128,efc=40     faiss:IVF     faiss:PQ16
//
// Ours are: "IVF" without a number, whose number of lists follows the number of keys, and "IVF…"
// without a code, which means SQ8: scores are exact whatever the code (see approximate_index.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace topkv {

struct FaissSpec {
  std::string factory;  ///< FAISS's string; a bare "IVF" in it when lists_follow_keys
  bool lists_follow_keys = false;
  bool has_lists = false;  ///< it is an IVF index
  bool is_graph = false;   ///< it is an HNSW index
  std::int64_t graph_links =
      0;                    ///< M of an HNSW index over plain keys, which are read in place; else 0
  std::int64_t nprobe = 0;  ///< lists read per query; 0: follows k
  std::int64_t ef = 0;      ///< candidates kept by a graph search; 0: follows k
  std::int64_t efc = 40;    ///< candidates examined per inserted key (FAISS's default)

  /// spec: the whole string, for messages; text: what follows "faiss:".
  /// Throws InvalidArgument on what can be seen without FAISS to be wrong.
  static FaissSpec parse(std::string_view spec, std::string_view text);

  /// The factory string with `lists` in place of the number that follows the keys.
  std::string factory_with(std::int64_t lists) const;

  /// The canonical spec, defaults spelled out.
  std::string text() const;
};

}  // namespace topkv
