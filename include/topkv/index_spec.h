// The spec of an index: one string that names it, read before there is an index. An IndexSpec
// answers whether a string is valid, what the index can do, and whether it takes keys of some
// dimensions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace topkv {

class IndexFactory;
class KeyIndex;

/// The name of an index or a tail, in FAISS's manner: a kind and its options, such as
/// "codes:k=16,v=8". Options that are left out have defaults.
///
/// Indices:
///
///     exact                     every key in one pass; never wrong
///     codes:k=16,v=8            every key by its code: 16 bytes for each 128 dims, or part of 128.
///                               Codes of values, 8 bytes for each 128 dims, make it a tail, too;
///                               v=0: no tail
///     ivf:size=32,share=32      lists of some 32 near keys, which stay where they are; a query
///                               reads one of 32 keys, or 48 times the wanted number if that is
///                               more
///     hnsw:M=16,efc=100,ef=0    hnswlib's graph over keys that stay where they are
///     faiss:HNSW32              FAISS's graph over keys that stay where they are
///     faiss:IVF4096,SQ8         FAISS's lists of codes
///     faiss:PQ16                FAISS's codes without lists
///
/// docs/reference/indices.md lists all factory strings of FAISS that topkv takes.
///
/// Methods of the literature, which choose rows by the rules of their papers. The head of each
/// method's file in index/ has the equations and all simplifications:
///
///     quest:page=16             pages of keys, by the bounds of their channels (Tang et al. 2024)
///     sparq:r=32,v=0            keys by the r components that are largest in the query (Ribar et
///                               al. 2024); v=1: a mean value stands for the other rows
///     squeezed:c=5,coarse=0,s=0 clusters of keys, their number 5 % of the keys, chosen for all
///                               tokens of a step together (Hooper et al. 2025). s=90: by a
///                               threshold that leaves out 90 %. coarse=1: through coarse clusters,
///                               their number 1 % of the keys
///     retroinfer:size=16,segment=8192,v=1
///                               clusters within segments; v=1: clusters that are not attended are
///                               estimated by their means (Chen et al. 2025)
///     lowrank:r=16              keys along their r main axes (InfiniGen, Lee et al. 2024)
///     h2o                       keys that the prefill's queries attended most (Zhang et al. 2023)
///     tova                      keys that the prefill's last query attended most (Oren et al.
///                               2024)
///     none                      no key: sinks and window alone (StreamingLLM, Xiao et al. 2024)
///
/// Tails, which go beside any index and estimate the attention over rows that are not attended:
///
///     mean                      the mean of all values, weighted by codes of keys (16 bytes)
///     pages:size=16             means and variances of pages of rows
///     sample:rows=256,eps=0,delta=5
///                               a uniform sample of rows (Desai et al. 2025); eps above 0: as
///                               large as needed for an error above eps percent to have a
///                               probability of at most delta percent
///
/// An IndexSpec is a value: copies are cheap. Two are equal when they name one index, however they
/// are spelled. Const members are safe from many threads.
class IndexSpec {
 public:
  /// Parses a spec. Throws InvalidArgument for an invalid one; the message names the part that is
  /// not understood and the known choices.
  explicit IndexSpec(std::string_view text);

  /// Returns the index that the command and topkv.hf use when none is named, for keys of `dim`
  /// elements. Up to 256 dims it is codes:k=32,v=8, else codes:k=16,v=8.
  ///
  /// Codes of this size, with 128 rows of each query head, kept attention near dense attention where
  /// that was measured (docs/measurements/models.md). A context has the index after Context::with_index. Throws
  /// InvalidArgument when dim is below 1.
  static IndexSpec default_for(std::int64_t dim);

  /// Returns the spec with all defaults spelled out. The constructor accepts this text.
  const std::string& text() const { return text_; }

  /// Returns whether keys that are added after build are found as well as the keys before it. Such
  /// an index may be built while keys still arrive. False when build learns from all keys, as
  /// k-means does.
  bool grows() const;

  /// Checks that the index can be built over `keys` keys of `dim` elements. Throws InvalidArgument
  /// when build would. An index over 0 keys can always be built.
  void check(std::int64_t dim, std::int64_t keys) const;

  /// Returns whether the index has a tail, which estimates the attention over rows that are not
  /// attended (RetrievalOptions::tail). True for codes with v above 0, for sparq and retroinfer
  /// with v=1, and for the tails mean, pages and sample.
  bool has_tail() const;

  /// Returns whether this is an index of codes that has a tail. The tail "codes" beside such an
  /// index means the index's own. True for `mean`, too, which is held as codes of keys.
  bool has_code_tail() const;

  /// Returns whether the index learns from queries of the prefill. The context must then have kept
  /// some (ContextOptions::keep_queries).
  bool learns_queries() const;

  /// Throws InvalidArgument when this names a tail that finds no rows by itself, such as `mean`.
  void check_index() const;

  /// Makes an index without keys. Throws InvalidArgument as check_index() does.
  std::unique_ptr<KeyIndex> make() const;

  friend bool operator==(const IndexSpec& a, const IndexSpec& b) { return a.text_ == b.text_; }

  /// For topkv itself: makes indices of this kind, with its options.
  const IndexFactory& factory() const { return *factory_; }

 private:
  std::shared_ptr<const IndexFactory> factory_;
  std::string text_;
};

}  // namespace topkv
