// The operations that a forward pass is written against, so that it is written once. An
// implementation owns where the arithmetic runs and the memory that it runs on.
//
// Layout: activations are float32, row-major [tokens, features], in the device's memory. What a
// matrix product reads is an *operand*: the same values in the device's operand type (float32 on
// the host, bf16 on CUDA), which rms_norm, the gates and to_operand write.
// Order: operations happen as if in the order of the calls; on CUDA they are only begun when a call
// returns, and copy_out waits for all before it.
// Threads: one thread at a time per device on CUDA (callers hold `lock`); the host's operations are
// safe from many threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "index/clustering.h"
#include "index/code_encoder.h"
#include "src/core/matrix.h"
#include "src/device/decode_backend.h"
#include "src/device/device_codes.h"
#include "src/device/device_prefill.h"
#include "src/device/device_sizes.h"
#include "src/device/phase_clock.h"
#include "topkv/device.h"
#include "topkv/types.h"

namespace topkv {

/// cos and sin of the rotary angles of consecutive positions: [tokens, rotary_dim / 2]; and which
/// elements of a head they turn.
struct RopeAngles {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t rotary_dim = 0;  ///< the first so many elements, an even number; 0: the whole head
  bool interleaved = false;     ///< pairs (2i, 2i + 1), not (i, i + rotary_dim / 2)
};

/// Memory of a device, given back when it goes. At least 256-byte aligned; not initialised.
class Buffer {
 public:
  using Free = std::function<void(std::byte*, std::int64_t bytes)>;

  Buffer() = default;
  Buffer(std::byte* data, std::int64_t bytes, Free free)
      : data_(data), bytes_(bytes), free_(std::move(free)) {}
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      release();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      free_ = std::move(other.free_);
    }
    return *this;
  }

  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  void release() {
    if (data_ != nullptr) free_(data_, bytes_);
  }

  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  Free free_;
};

/// How a router's scores choose experts for a token: the k that score highest, of equal ones the
/// first; NaN counts as the lowest.
struct Routing {
  std::int64_t experts = 0;
  std::int64_t k = 0;     ///< from 1 to experts
  bool over_all = false;  ///< weights are of a softmax over all experts, not over those chosen
};

/// Which expert each row of a product goes through. Rows are slots: those of token t are t k and
/// the k - 1 behind it, in the order in which route chose them; or slots sorted by expert.
struct ExpertRows {
  const std::int32_t* experts = nullptr;  ///< [count], in the device's memory; null: sorted
  std::int64_t count = 0;
  /// Sorted: rows of expert e end before ends[e], in host memory. Else empty.
  std::span<const std::int64_t> ends = {};
};

/// What a device remembers of work that it will do again.
class Recording {
 public:
  virtual ~Recording() = default;
};

/// Empty on the host.
using DeviceLock = std::unique_lock<std::recursive_mutex>;

class ComputeDevice : public DeviceSizes {
 public:
  virtual std::string name() const = 0;
  virtual DeviceMemory memory() const = 0;
  /// Held by whoever gives a CUDA device work; owns no mutex on the host.
  virtual DeviceLock lock() = 0;

  virtual std::unique_ptr<PhaseClock> phase_clock() = 0;

  /// what: for the account of memory ("weights"). Throws OutOfMemory.
  virtual Buffer allocate(std::int64_t bytes, std::string_view what) = 0;
  /// Host to device; the host memory may be changed on return.
  virtual void copy_in(const void* host, std::int64_t bytes, std::byte* to) = 0;
  /// Device to host; waits for all earlier work and the copy.
  virtual void copy_out(const std::byte* from, std::int64_t bytes, void* host) = 0;
  virtual void synchronize() = 0;
  /// Page-locks host memory, which outlives what it gives: copies are then faster. Null where that
  /// is for nothing. Throws Error when the driver refuses.
  virtual std::shared_ptr<void> lock_pages(std::byte* /*data*/, std::int64_t /*bytes*/) {
    return nullptr;
  }

  /// A plain matrix as this device multiplies it: itself on the host; on CUDA a copy in bf16, in
  /// upload_bytes(host) bytes of device memory at `storage`. Packed ones are the same on every
  /// device: copy_in puts them there.
  virtual Matrix upload(const Matrix& host, std::byte* storage) = 0;
  /// Before the first product with packed weights: takes packed_bytes(). Throws OutOfMemory.
  virtual void prepare_packed() {}

  /// Whether replay is worth its while here.
  virtual bool replays() const { return false; }
  /// Does the work. On CUDA it is recorded on the way and later calls replay the recording, at the
  /// price of one launch: `work` must be the same operations with the same arguments each time, of
  /// those below up to to_operand, without embed.
  virtual void replay(std::unique_ptr<Recording>& /*recording*/,
                      const std::function<void()>& work) {
    work();
  }

  /// out[t] = row tokens[t] of the table. out: [tokens, in_features].
  /// REQUIRES: 0 <= token < table.out_features.
  virtual void embed(const Matrix& table, std::span<const Token> tokens, float* out) = 0;

  /// out = x W^T (+ out when accumulate). x: operand [tokens, in_features],
  /// out: [tokens, out_features].
  virtual void matmul(const Matrix& weight, const std::byte* x, std::int64_t tokens,
                      bool accumulate, float* out) = 0;

  /// Products of the same x, in one go where the device can.
  virtual void products(std::span<const Product> all, const std::byte* x, std::int64_t tokens,
                        bool accumulate) {
    for (const Product& one : all) {
      matmul(one.weight, x, tokens, accumulate, one.out);
      if (one.bias != nullptr) add_bias(one.bias, tokens, one.weight.out_features, one.out);
    }
  }

  /// x[row] += bias, for each of the rows. x: [rows, width].
  virtual void add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x) = 0;

  /// out[row] = RMSNorm of x[row] over width, as an operand (Zhang & Sennrich 2019, eq. 4).
  virtual void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
                        float epsilon, std::byte* out) = 0;

  /// x[row] += RMSNorm of from[row] over width, in float32: what a layer's part gives, normalised
  /// before it is added.
  virtual void add_norm(const float* from, const float* weight, std::int64_t rows,
                        std::int64_t width, float epsilon, float* x) = 0;

  /// RMSNorm in place, in float32: q/k-norm over the heads' width or a token's.
  virtual void head_norm(const float* weight, std::int64_t rows, std::int64_t width, float epsilon,
                         float* x) = 0;

  /// Rotates every head in place. x: [tokens, heads, head_dim].
  virtual void rope(const RopeAngles& angles, std::int64_t tokens, std::int64_t heads,
                    std::int64_t head_dim, float* x) = 0;

  /// out = silu(gate) * up, element by element, as an operand.
  virtual void silu_multiply(const float* gate, const float* up, std::int64_t count,
                             std::byte* out) = 0;

  /// out = gelu(gate) * up with the tanh form of GELU (Hendrycks & Gimpel 2016, section 2), as an
  /// operand.
  virtual void gelu_multiply(const float* gate, const float* up, std::int64_t count,
                             std::byte* out) = 0;

  /// out = g sigmoid(1.702 g) (u + 1), as an operand, where g is gate, at most `limit`, and u is
  /// up, held between -limit and limit (gpt-oss).
  virtual void clamped_silu_multiply(const float* gate, const float* up, float limit,
                                     std::int64_t count, std::byte* out) = 0;

  /// x[token, head] *= sigmoid(lse - sinks[head]): attention with one more score, whose row of V is
  /// 0, is a merge with the partial (0, sink). lse: [tokens, heads]; x: [tokens, heads, head_dim].
  virtual void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens,
                            std::int64_t heads, std::int64_t head_dim, float* x) = 0;

  /// Chooses experts by scores [tokens, experts]: ids and weights [tokens, k], those of the highest
  /// score first. Every id is one of an expert, whatever the scores are.
  virtual void route(const float* scores, std::int64_t tokens, const Routing& routing,
                     std::int32_t* ids, float* weights) = 0;

  /// out[r] = W x[r / sharing] + bias, where W and bias are those of row r's expert; in one go where
  /// the device can. x: operand. Sorted rows are multiplied expert by expert, which replay cannot do.
  virtual void expert_products(std::span<const ExpertProduct> all, const std::byte* x,
                               std::int64_t sharing, const ExpertRows& rows) = 0;

  /// out[r] = x[slots[r] / sharing], operands of so many elements.
  virtual void gather(const std::byte* x, const std::int32_t* slots, std::int64_t count,
                      std::int64_t sharing, std::int64_t width, std::byte* out) = 0;

  /// x[t] += the sum over j in [0, k), in this order, of weights[t, j] from[place of slot t k + j].
  /// places: [tokens, k], null: slots are where they are. x: [tokens, width].
  virtual void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                            std::int64_t tokens, std::int64_t k, std::int64_t width, float* x) = 0;

  /// to = from.
  virtual void copy(const float* from, std::int64_t count, float* to) = 0;

  /// x *= factor.
  virtual void scale(float factor, std::int64_t count, float* x) = 0;

  /// out = x as an operand.
  virtual void to_operand(const float* x, std::int64_t count, std::byte* out) = 0;

  /// Index of the largest of `count` logits; of equal ones the first. Waits for it.
  virtual Token argmax(const float* logits, std::int64_t count) = 0;

  /// Merges `other` into `into`, in the device's memory (topkv::merge). stream: which is to use
  /// `into`, as that of AttentionStep.
  virtual void merge(PartialView into, PartialView other, void* stream) = 0;

  /// Attention of a prefill into the store, which outlives what is made.
  /// REQUIRES: the store has as many rows in every layer, and room for the whole prefill. Throws
  /// OutOfMemory, and Unsupported for a head_dim or row dtype that the device does not know.
  virtual std::unique_ptr<DevicePrefill> prefill_attention(const AttentionShape& shape,
                                                           const PrefillVisibility& visible,
                                                           std::int64_t chunk, RowStore& store) = 0;

  /// What codes vectors of so many elements that lie in page-locked memory; null: nothing, it is
  /// for the host's threads. The device outlives it. Throws OutOfMemory.
  virtual std::unique_ptr<CodeEncoder> code_encoder(std::int64_t /*dim*/) { return nullptr; }

  /// What clusters vectors of so many elements; null: nothing, it is for the host's threads. The
  /// device outlives it.
  virtual std::unique_ptr<Clusterer> clusterer(std::int64_t /*dim*/) { return nullptr; }

  /// Codes of a context whose rows outlive the call: [layers x kv_heads], without keys where a
  /// layer has none. Takes the lock itself, for a piece of it at a time: the caller does not hold
  /// it. REQUIRES: scans_codes(shape). Throws OutOfMemory.
  virtual std::shared_ptr<const DeviceCodes> keep_codes(const AttentionShape& /*shape*/,
                                                        std::span<const HeadCodes> /*heads*/) {
    return nullptr;
  }

  /// What stands for a context's keys: [layers x kv_heads], of no kind where a layer has none.
  /// Read during the call alone. Takes the lock as keep_codes does. REQUIRES: selects(shape, what
  /// has the most entries). Throws OutOfMemory.
  virtual std::shared_ptr<const DeviceSelection> keep_selection(
      const AttentionShape& /*shape*/, std::span<const StandIns> /*heads*/) {
    return nullptr;
  }

  /// The decode step of a session.
  virtual std::unique_ptr<DecodeBackend> decode_backend(const SessionShape& shape) = 0;
};

/// The host's cores. Lives as long as the program.
const std::shared_ptr<ComputeDevice>& host_device();

/// In gpu/: the CUDA device of this number; gpu_count() is 0 without CUDA, and gpu_reason() says
/// why.
std::shared_ptr<ComputeDevice> open_gpu(int number, std::int64_t memory_ceiling);
int gpu_count();
std::string gpu_reason();
/// What a CUDA device would take, whether or not there is one. Throws Unsupported in a build
/// without CUDA.
std::shared_ptr<const DeviceSizes> gpu_sizes();

}  // namespace topkv
