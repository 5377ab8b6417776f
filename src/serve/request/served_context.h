// A context that requests are answered over.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "topkv/context.h"
#include "topkv/context_file.h"
#include "topkv/session.h"

namespace topkv::serve {

/// Shared with the requests over it: who takes it from the list takes it from none of them.
struct ServedContext {
  std::string name = {};  ///< empty: the one without text, for requests that name none
  std::shared_ptr<const Context> context;
  ContextEnd end = {};
  std::vector<Token> tokens = {};  ///< whose rows these are; empty: not known
  RetrievalOptions retrieval;      ///< of sessions; each with its own capacity
};

}  // namespace topkv::serve
