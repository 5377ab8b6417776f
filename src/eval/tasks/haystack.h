// Haystacks: endless text to hide needles in, one sentence at a time.
//
// "noise"      RULER's repeated noise (Hsieh et al. 2024; first in Mohtashami & Jaggi 2023)
// "needles"    RULER's hardest: other needles, with keys and values of their own
// "generated"  invented English sentences, all different
// a directory  its *.txt and *.md files in name order, white space collapsed as RULER does with
//              its essays; repeated when the context is longer
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace topkv {

/// Those that are no directory.
std::span<const std::string> haystack_names();

/// One thread at a time.
class Haystack {
 public:
  virtual ~Haystack() = default;
  /// The next sentence, without surrounding white space; never empty.
  virtual std::string next() = 0;
  /// What stands between sentences: "\n" or " ".
  virtual std::string separator() const = 0;
};

/// distractor makes one sentence of the "needles" haystack.
/// Throws FileError for a directory that cannot be read or holds no text, and InvalidArgument for
/// a name that is neither a haystack nor a directory.
std::unique_ptr<Haystack> make_haystack(const std::string& name, std::uint64_t seed,
                                        std::function<std::string()> distractor);

/// Throws what make_haystack would, without reading the texts.
void check_haystack(const std::string& name);

}  // namespace topkv
