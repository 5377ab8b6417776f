// The name of an index, understood: what can be asked of an index before there is one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace topkv {

class KeyIndex;

/// An index is named by one string, in FAISS's manner:
///
///   exact                     every key, each search one pass over them (own SIMD scan)
///   codes:k=16,v=8            every key by a code of 16 bytes; codes of 8 bytes for values let it
///                             stand for the rows that are not attended, in one pass with the
///                             search
///   ivf:size=32,share=32      lists of some 32 near keys that stay where they are; a query
///                             reads one of 32 keys, and 48 times what is wanted at least
///   hnsw:M=16,efc=100,ef=0    hnswlib's graph over keys that stay where they are
///   faiss:HNSW32              FAISS's graph over keys that stay where they are
///   faiss:IVF4096,SQ8         FAISS's lists of codes; all that is taken of FAISS's factory strings
///                             stands in the README
///
/// Methods of the literature, which choose rows by their papers' rules (each at the head of its file
/// in index/, with what is simplified):
///
///   quest:page=16             pages of keys by the bounds of their channels (Tang et al. 2024)
///   sparq:r=32,v=0            the r largest components of a query with those of all keys (Ribar et
///                             al. 2024); v=1: its mean value stands for the rest
///   squeezed:c=5,coarse=0,s=0 clusters of keys, as many as 5 % of these, chosen for all tokens of
///                             a step together (Hooper et al. 2025); s=90: by a threshold that
///                             leaves out 90 %; coarse=1: by way of coarse ones, as many as 1 %
///   retroinfer:size=16,segment=8192,v=1
///                             clusters within segments, the rest estimated by them (Chen et al. 2025)
///   lowrank:r=16              keys along their r main axes (Lee et al. 2024, InfiniGen)
///   h2o, tova                 what eviction leaves: the keys that the prefill's queries attended most
///                             (Zhang et al. 2023), or its last one (Oren et al. 2024)
///   none                      nothing: sinks and window alone (Xiao et al. 2024, StreamingLLM)
///
/// Some name a tail alone, which goes beside any of these:
///
///   mean                      keys by codes of 16 bytes, values all by their mean
///   pages:size=16             pages of rows by their means and variances
///   sample:rows=256,eps=0,delta=5
///                             a uniform sample; eps > 0: so large that it is off by more than eps
///                             percent with delta percent's probability (Desai et al. 2025)
///
/// A value: copies are cheap, and two are equal when they name the same index, however spelled.
/// Threads: const and safe from many.
class IndexSpec {
 public:
  /// Throws InvalidArgument naming the part that was not understood and what is known.
  explicit IndexSpec(std::string_view text);

  /// What the command and topkv.hf take for keys of so many dims where no index is named: codes
  /// with their tail, of as many bytes as kept attention near dense attention where that was
  /// measured (docs/measurements/evaluation.md). Below 128 dims codes:k=32,v=8, else
  /// codes:k=16,v=8. A context has it after with_index(). Throws InvalidArgument for no dims.
  static IndexSpec default_for(std::int64_t dim);

  /// All defaults spelled out, as the constructor accepts it.
  const std::string& text() const { return text_; }

  /// True when keys added after build are found as well as those before it: such an index may be
  /// built while keys still arrive. (False where build learns from all keys, as k-means does.)
  bool grows() const;

  /// Throws InvalidArgument when build() would for keys of this dim, or for so many of them. No
  /// keys are always enough.
  void check(std::int64_t dim, std::int64_t keys) const;

  /// True when such an index codes values too, and so can stand for the rows of a context that are
  /// not attended (RetrievalOptions::tail); and of `mean`.
  bool has_tail() const;

  /// True of codes whose tail is of codes, too: "codes" as a tail beside such an index is its own.
  bool has_code_tail() const;

  /// True when it learns from queries of the prefill, which the context must have kept
  /// (ContextOptions::keep_queries).
  bool learns_queries() const;

  /// Throws InvalidArgument when this names no index that finds rows: `mean`.
  void check_index() const;

  /// An empty index. Throws as check_index() does.
  std::unique_ptr<KeyIndex> make() const;

  friend bool operator==(const IndexSpec& a, const IndexSpec& b) { return a.text_ == b.text_; }

  class Kind;  ///< of an index, with its parameters; for the library itself
  const Kind& kind() const { return *kind_; }

 private:
  std::shared_ptr<const Kind> kind_;
  std::string text_;
};

}  // namespace topkv
