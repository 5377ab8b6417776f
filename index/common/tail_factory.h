// Specs that name a tail alone, which stands beside any index.
#pragma once

#include "index/common/index_factory.h"
#include "index/common/none_index.h"

namespace topkv {

/// Of a tail that needs no index.
class TailFactory : public IndexFactory {
 public:
  std::unique_ptr<HeadIndex> make() const override { return none_factory()->make(); }
  bool is_served_by(const KeyIndex& /*index*/) const override { return false; }

 protected:
  TailFactory() : IndexFactory({.has_tail = true, .is_tail = true}) {}
};

}  // namespace topkv
