// Specs that name a tail alone, which stands beside any index.
#pragma once

#include <fmt/format.h>

#include "index/common/index_factory.h"
#include "index/common/none_index.h"
#include "topkv/error.h"

namespace topkv {

/// Throws what check_index() does for such a spec.
[[noreturn]] inline void refuse_as_index(const std::string& text) {
  throw InvalidArgument(
      fmt::format("index \"{}\": is a tail, which estimates rows and finds none; expected an index "
                  "such as exact or codes, with {} as its tail",
                  text, text));
}

/// Of a tail that needs no index.
class TailFactory : public IndexFactory {
 public:
  bool has_tail() const override { return true; }
  void check_index() const override { refuse_as_index(text()); }
  std::unique_ptr<KeyIndex> make() const override { return none_factory()->make(); }
  bool is_served_by(const KeyIndex& /*index*/) const override { return false; }
};

}  // namespace topkv
