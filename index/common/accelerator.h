// What does parts of building an index in place of the host's threads.
#pragma once

namespace topkv {

class CodeEncoder;
class Clusterer;

/// Null: the host's threads do it. For the length of a call.
struct Accelerator {
  CodeEncoder* encoder = nullptr;
  Clusterer* clusterer = nullptr;
};

}  // namespace topkv
