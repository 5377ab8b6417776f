#include "src/text/jinja/names.h"

#include "src/text/jinja/limits.h"

namespace topkv {
namespace {

// Of a scope with a loop's object, and of a name with a value that was not counted when it was
// made.
constexpr std::size_t scope_bytes = 8192;
constexpr std::size_t name_bytes = 512;

}  // namespace

Scope::Scope(Names& names, const Scope* outer)
    : names_(names), before_(names.innermost), outer_(outer) {
  Meter::current().hold(scope_bytes);
  held_ = scope_bytes;
  names_.innermost = this;
  if (outer == nullptr) names_.outermost = this;
}

Scope::~Scope() {
  Meter::current().release(held_);
  names_.innermost = before_;
}

Value Names::find(std::string_view name) const {
  Meter& meter = Meter::current();
  for (const Scope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    meter.step();
    meter.read(name.size());
    const auto found = scope->values_.find(name);
    if (found != scope->values_.end()) return found->second;
  }
  return nullptr;
}

void Names::set(std::string_view name, const Value& value) {
  Meter& meter = Meter::current();
  meter.read(name.size());
  const auto [entry, is_new] = innermost->values_.insert_or_assign(name, value);
  if (!is_new) return;
  meter.hold(name_bytes);
  innermost->held_ += name_bytes;
}

}  // namespace topkv
