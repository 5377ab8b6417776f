// What generation consists of, for one session or several.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "src/model/generate/session_rollback.h"
#include "src/model/model_impl.h"
#include "src/model/network/forward.h"
#include "topkv/model.h"

namespace topkv {

/// A forward pass of the model, given back at the end.
class ForwardLease {
 public:
  explicit ForwardLease(const Model::Impl& model)
      : model_(model), forward_(model.borrow_forward()) {}
  ~ForwardLease() { model_.keep(std::move(forward_)); }
  ForwardLease(const ForwardLease&) = delete;  // gives back once
  ForwardLease& operator=(const ForwardLease&) = delete;
  Forward& operator*() const { return *forward_; }

 private:
  const Model::Impl& model_;
  std::unique_ptr<Forward> forward_;
};

/// Throws as Model::generate does, before any work.
void check_generation(const Model::Impl& model, const Session& session,
                      std::span<const Token> prompt, const GenerateOptions& options);

}  // namespace topkv
