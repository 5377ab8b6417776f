// What is done to a text before tokenization: nothing, Unicode's form NFC, and spaces made
// SentencePiece's, with or without one in front.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace topkv {

/// Immutable; safe from many threads.
class Normalizer {
 public:
  /// Reads null, NFC, Prepend and Replace (of U+2581, in front and for spaces) and Sequences of
  /// them. Throws FileError, or Unsupported naming the component;
  /// both begin with `file`.
  static Normalizer parse(const nlohmann::json& description, const std::filesystem::path& file);

  /// The normalized text: `text` itself, or a view of `buffer`, which is overwritten.
  /// REQUIRES: text is well-formed UTF-8.
  std::string_view apply(std::string_view text, std::string& buffer) const;

  /// Whether spaces become U+2581.
  bool replaces_spaces() const { return replaces_spaces_; }

 private:
  std::string_view apply_nfc(std::string_view text, std::string& buffer) const;
  void read(const nlohmann::json& description, const std::filesystem::path& file,
            const std::string& where);

  bool nfc_ = false;
  bool prepends_ = false;         // a space in front of what is not empty
  bool replaces_spaces_ = false;  // by U+2581
};

}  // namespace topkv
