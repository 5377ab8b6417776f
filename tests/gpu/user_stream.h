// Steps whose tensors a caller makes late on a stream of its own, on which it also reads what they
// give: whoever takes them must wait, and make it wait.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/runtime/handles.h"
#include "tests/gpu/faults_guard.h"
#include "tests/support/token_stream.h"
#include "topkv/attention.h"

namespace test {

class UserStream {
 public:
  static constexpr int delay_us = 2000;

  using Attend = std::function<void(const topkv::AttentionStep&)>;
  /// The rows that a query head of the token at p sees.
  using Visible =
      std::function<TokenStream::Visible(std::int64_t layer, std::int64_t p, std::int64_t head)>;

  /// For the stream's tokens from `first` on.
  UserStream(const Place& place, const TokenStream& stream, std::int64_t first)
      : place_(place),
        stream_(stream),
        first_(first),
        tokens_(stream.total - first),
        q_count_(tokens_ * stream.q_width()),
        kv_count_(tokens_ * stream.kv_width()),
        lse_count_(tokens_ * stream.shape.q_heads) {}

  /// Gives all tokens in one step of each layer. Returns the largest error, of the log-sum-exps
  /// too.
  double worst(const Attend& attend, const Visible& visible, bool drop_waits) {
    // Zeros, which are taken as well as any other values, where the tensors will be.
    const std::int64_t forms = stream_.shape.chunk_len > 0 ? 3 : 1;  // of a token's query
    const topkv::Buffer q = zeros(forms * q_count_);
    const topkv::Buffer k = zeros(kv_count_);
    const topkv::Buffer v = zeros(kv_count_);
    const topkv::Buffer out = zeros(q_count_);
    const topkv::Buffer lse = zeros(lse_count_);
    const topkv::gpu::PinnedBuffer made((forms * q_count_ + 2 * kv_count_) * 4);
    const topkv::gpu::PinnedBuffer read((q_count_ + lse_count_) * 4);
    place_.compute().synchronize();
    const InjectedFaults late(delay_us, drop_waits);
    double worst = 0;
    for (std::int64_t l = 0; l < stream_.shape.layers; ++l) {
      const auto at = static_cast<std::size_t>(l);
      auto* from = made.as<float>();
      float* rows = from + forms * q_count_;
      std::copy_n(stream_.q[at].end() - q_count_, q_count_, from);
      if (forms > 1) {
        std::copy_n(stream_.q_next[at].end() - q_count_, q_count_, from + q_count_);
        std::copy_n(stream_.q_far[at].end() - q_count_, q_count_, from + 2 * q_count_);
      }
      std::copy_n(stream_.k[at].end() - kv_count_, kv_count_, rows);
      std::copy_n(stream_.v[at].end() - kv_count_, kv_count_, rows + kv_count_);
      topkv::gpu::inject_copy_delay(user_);
      copy(q.floats(), from, forms * q_count_, cudaMemcpyHostToDevice);
      copy(k.floats(), rows, kv_count_, cudaMemcpyHostToDevice);
      copy(v.floats(), rows + kv_count_, kv_count_, cudaMemcpyHostToDevice);
      topkv::AttentionStep step{.layer = l,
                                .tokens = tokens_,
                                .q = q.floats(),
                                .k = k.floats(),
                                .v = v.floats(),
                                .out = out.floats(),
                                .lse = lse.floats(),
                                .stream = static_cast<cudaStream_t>(user_)};
      if (forms > 1) {
        step.q_next = q.floats() + q_count_;
        step.q_far = q.floats() + 2 * q_count_;
      }
      attend(step);
      auto* to = read.as<float>();
      copy(to, out.floats(), q_count_, cudaMemcpyDeviceToHost);
      copy(to + q_count_, lse.floats(), lse_count_, cudaMemcpyDeviceToHost);
      user_.synchronize();
      worst = std::max(worst, worst_of(l, to, to + q_count_, visible));
    }
    return worst;
  }

 private:
  topkv::Buffer zeros(std::int64_t count) const {
    return place_.put(std::vector<float>(static_cast<std::size_t>(count), 0.0F));
  }
  void copy(float* to, const float* from, std::int64_t count, cudaMemcpyKind kind) {
    TOPKV_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * 4, kind, user_));
  }
  double worst_of(std::int64_t layer, const float* out, const float* lse,
                  const Visible& visible) const {
    double worst = 0;
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const std::int64_t p = first_ + t;
      for (std::int64_t head = 0; head < stream_.shape.q_heads; ++head) {
        const float* result = out + t * stream_.q_width() + head * stream_.shape.head_dim;
        worst = std::max(
            worst, stream_.error(layer, p, head, true, result,
                                 lse + t * stream_.shape.q_heads + head, visible(layer, p, head)));
      }
    }
    return worst;
  }

  const Place& place_;
  const TokenStream& stream_;
  topkv::gpu::Stream user_;
  std::int64_t first_, tokens_;
  std::int64_t q_count_, kv_count_, lse_count_;  // elements
};

}  // namespace test
