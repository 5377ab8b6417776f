// Access to the inside of a Context, for the code that reads and writes contexts' files
// (topkv/context_file.h).
#pragma once

#include <memory>
#include <utility>

#include "src/context/segment.h"
#include "topkv/context_file.h"

namespace topkv {

class ContextFile {
 public:
  static const Segment& segment(const Context& context) { return *context.segment_; }
  static std::shared_ptr<const Context> make(AttentionShape shape, Segment segment) {
    return std::shared_ptr<const Context>(new Context(std::move(shape), std::move(segment)));
  }
};

}  // namespace topkv
