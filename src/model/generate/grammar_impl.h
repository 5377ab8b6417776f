// What a grammar holds.
#pragma once

#include <memory>

#include "src/model/model_impl.h"
#include "topkv/grammar.h"

namespace topkv {

struct Grammar::Impl {
  const Model::Impl* of = nullptr;
  std::shared_ptr<const JsonGrammar> json;
};

}  // namespace topkv
