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

}  // namespace topkv
