// Unicode normalization before tokenization: none, or form NFC.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace topkv {

/// Immutable; safe from many threads.
class Normalizer {
 public:
  /// Reads null, NFC and Sequences of them. Throws FileError, or Unsupported naming the component;
  /// both begin with `file`.
  static Normalizer parse(const nlohmann::json& description, const std::filesystem::path& file);

  /// The normalized text: `text` itself, or a view of `buffer`, which is overwritten.
  /// REQUIRES: text is well-formed UTF-8.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  bool nfc_ = false;
};

}  // namespace topkv
