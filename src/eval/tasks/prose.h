// Prose that tasks hide things in or take passages of, sentence by sentence from its beginning.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/eval/tasks/haystack.h"

namespace topkv {

/// Endless: as many sentences as are asked for, kept. One thread at a time.
class Prose {
 public:
  /// name: "generated", or a directory of texts; the seed is of the former. Throws what
  /// make_haystack does.
  Prose(const std::string& name, std::uint64_t seed);

  const std::string& sentence(std::int64_t number);
  /// The first so many words, in their sentences: the last one may be cut off.
  std::vector<std::string> words(std::int64_t count);

 private:
  std::unique_ptr<Haystack> source_;
  std::vector<std::string> sentences_;
};

/// Where tasks find prose: every sample has generated text of its own, and all have the texts of a
/// directory, which are read once.
class ProseSource {
 public:
  /// directory: empty for generated prose. Throws what make_haystack does.
  explicit ProseSource(const std::string& directory);

  /// "generated", or the directory.
  const std::string& name() const { return name_; }
  std::shared_ptr<Prose> prose(std::uint64_t seed) const;

 private:
  std::string name_;
  std::shared_ptr<Prose> texts_;  // of a directory
};

/// One text of sentences and of others that are put between them, with spaces between all.
/// inserted[i] stands before sentence places[i], or behind the last. REQUIRES: places are sorted
/// and at most the number of sentences, one for each that is inserted.
std::string with_inserted(const std::vector<std::string>& sentences,
                          const std::vector<std::string>& inserted,
                          const std::vector<std::int64_t>& places);

/// Places for `count` insertions in the middle of `count` equal parts of the sentences.
std::vector<std::int64_t> even_places(std::int64_t sentences, std::int64_t count);

}  // namespace topkv
