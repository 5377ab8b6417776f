// A compiled PCRE2 pattern (UTF, Unicode properties, JIT where PCRE2 has it) and the working memory
// that matching needs.
//
// PCRE2 backtracks: a pattern may take time that grows with any power of the text, or without end.
// Its own limit does not help: it counts anew from every place where a match could begin, and not
// what repeated characters go over. So a match is first looked for in the next few bytes, where
// that can do little harm; when it needs more, step by step with a count, against an allowance.
//
// Threads: a Regex is immutable; each thread brings its own RegexScratch, which serves any Regex.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace topkv {

class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(RegexScratch&&) noexcept;
  RegexScratch& operator=(RegexScratch&&) noexcept;

  /// Adds to what all searches with this scratch may take. A step is a part of a pattern tried, or
  /// a byte that it went over.
  void allow(std::size_t steps);

 private:
  friend class Regex;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Regex {
 public:
  struct Match {
    std::size_t begin = 0;  ///< bytes
    std::size_t end = 0;
  };

  /// Throws FileError with PCRE2's reason when the pattern does not compile, Unsupported when it
  /// looks back far.
  explicit Regex(const std::string& pcre2_pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// The leftmost match that begins at `from` or later. REQUIRES: subject is well-formed UTF-8,
  /// `from` is at the start of a character or at the end.
  /// Throws FileError when the search takes more steps than the scratch allows, or too much memory.
  std::optional<Match> find(std::string_view subject, std::size_t from,
                            RegexScratch& scratch) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace topkv
