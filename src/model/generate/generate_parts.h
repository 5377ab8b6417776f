// What generation consists of, for one session or several.
#pragma once

#include <cstdint>
#include <span>

#include "src/model/generate/session_rollback.h"
#include "src/model/model_impl.h"
#include "src/model/network/forward_pool.h"
#include "topkv/model.h"

namespace topkv {

/// Throws as Model::generate does, before any work.
void check_generation(const Model::Impl& model, const Session& session,
                      std::span<const Token> prompt, const GenerateOptions& options);

}  // namespace topkv
