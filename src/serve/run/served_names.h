// Names that requests give in "model": the served model's, its aliases, and a context behind
// either.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace topkv::serve {

/// What Ollama's clients put behind a name without a tag. It stands for the name itself, unless a
/// context is named so.
inline constexpr const char* latest_tag = "latest";

/// What a name stands for.
struct NamedModel {
  std::string context;  ///< a name, which may be nobody's; empty: none
};

/// Immutable; safe from many threads.
class ServedNames {
 public:
  /// model: the name of the model itself; aliases: other names for it.
  ServedNames(std::string model, std::vector<std::string> aliases) : names_{std::move(model)} {
    names_.insert(names_.end(), aliases.begin(), aliases.end());
  }

  /// The model's own name, then its aliases.
  const std::vector<std::string>& all() const { return names_; }
  /// The name of the model over a context: "MODEL:CONTEXT".
  std::string with_context(std::string_view context) const;
  /// Reads "MODEL", "ALIAS", or either with ":CONTEXT" behind it. A whole name counts before one
  /// that is divided. None: nothing has this name.
  std::optional<NamedModel> find(std::string_view name) const;

 private:
  std::vector<std::string> names_;
};

/// Whether an alias can be named in a request and in a path: 1 to 256 visible ASCII characters
/// other than '"' and '\\'.
bool is_alias(std::string_view name);

}  // namespace topkv::serve
