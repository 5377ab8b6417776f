// The names that a template's statements see. A scope is there for the template, for each round of
// a loop and for each call of a macro; it finds the names around it where they are and copies none.
// (The engine's contexts copy all.)
#pragma once

#include <jinja/runtime.h>

#include <cstddef>
#include <string_view>
#include <unordered_map>

#include "src/text/jinja/values.h"

namespace topkv {

class Scope;

/// What the engine hands from node to node as its context: one for each rendering.
struct Names : public jinja::context {
  const Scope* outermost = nullptr;  ///< of the template
  Scope* innermost = nullptr;

  /// Null where there is none. Counts each scope that it looks into.
  Value find(std::string_view name) const;
  /// In the innermost scope. The name's bytes must outlive the scope: the template's do.
  void set(std::string_view name, const Value& value);
};

/// REQUIRES: a node of a template's, in a rendering.
inline Names& names_of(jinja::context& context) { return static_cast<Names&>(context); }

/// The innermost of the names until it goes. Counts what it takes as long as it lives.
class Scope {
 public:
  /// outer: whose names are seen, too; null for the outermost.
  Scope(Names& names, const Scope* outer);
  ~Scope();
  Scope(const Scope&) = delete;  // the names know its address
  Scope& operator=(const Scope&) = delete;

 private:
  friend struct Names;

  Names& names_;
  Scope* before_;  // the innermost until now: a macro's caller, or the outer
  const Scope* outer_;
  std::unordered_map<std::string_view, Value> values_;
  std::size_t held_ = 0;  // bytes
};

}  // namespace topkv
