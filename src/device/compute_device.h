// The operations that a forward pass is written with, so that it is written once for every device.
// An implementation owns the place of the arithmetic, and the memory that it runs on.
//
// Layout: activations are float32, row-major [tokens, features], in the device's memory. A matrix
// product reads an *operand*: activations in the device's operand type, float32 on the host and
// bf16 on CUDA. rms_norm, the gates and to_operand write operands.
//
// Order: operations happen as if in the order of the calls. On CUDA a call only begins its work,
// and copy_out waits for all work before it.
//
// Threads: on CUDA one thread at a time, which holds `lock`. The host's operations are safe from
// many threads.
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

#include "index/codes/code_encoder.h"
#include "index/lists/clustering.h"
#include "src/core/math/matrix.h"
#include "src/device/decode_backend.h"
#include "src/device/device_index.h"
#include "src/device/device_prefill.h"
#include "src/device/device_sizes.h"
#include "src/device/gated_delta.h"
#include "src/device/mamba2.h"
#include "src/device/phase_clock.h"
#include "src/device/routing.h"
#include "src/device/runs_copy.h"
#include "src/device/short_convolution.h"
#include "src/store/state_memory.h"
#include "topkv/device.h"
#include "topkv/types.h"

namespace topkv {

/// The rotary angles of consecutive positions, as cos and sin: [tokens, rotary_dim / 2]. It also
/// says which elements of a head they turn.
struct RopeAngles {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t rotary_dim = 0;  ///< number of first elements that are turned, even; 0: all
  bool interleaved = false;     ///< pairs (2i, 2i + 1), not (i, i + rotary_dim / 2)
};

/// Memory of a device, which its destructor gives back. It is aligned to at least 256 bytes and not
/// initialised.
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

/// The expert that each row of a product goes through.
///
/// A slot is one of a token's k experts: token t has the slots t k to t k + k - 1, in the order in
/// which route chose them. Rows are the slots in this order, or the slots sorted by expert.
struct ExpertRows {
  const std::int32_t* experts = nullptr;  ///< [count], in device memory; null: sorted rows
  std::int64_t count = 0;
  /// For sorted rows: the rows of expert e end before ends[e], in host memory. Else empty.
  std::span<const std::int64_t> ends = {};
};

/// A recording of work that a device will do again.
class Recording {
 public:
  virtual ~Recording() = default;
};

/// The lock of a device. It is empty on the host.
using DeviceLock = std::unique_lock<std::recursive_mutex>;

class ComputeDevice : public DeviceSizes {
 public:
  virtual std::string name() const = 0;
  virtual DeviceMemory memory() const = 0;
  /// Locks the device. Whoever gives a CUDA device work holds the lock. On the host it owns no
  /// mutex.
  virtual DeviceLock lock() = 0;

  virtual std::unique_ptr<PhaseClock> phase_clock() = 0;

  /// Allocates memory of the device. what: its name in the account of memory, such as "weights".
  /// Throws OutOfMemory.
  virtual Buffer allocate(std::int64_t bytes, std::string_view what) = 0;
  /// Makes memory for a recurrent state of `size` values; the device outlives it. Throws
  /// OutOfMemory.
  virtual std::shared_ptr<StateMemory> make_state(std::int64_t size) = 0;
  /// Copies host memory to the device. The host memory may be changed on return.
  virtual void copy_in(const void* host, std::int64_t bytes, std::byte* to) = 0;
  /// Copies device memory to the host. Waits for all earlier work and for the copy.
  virtual void copy_out(const std::byte* from, std::int64_t bytes, void* host) = 0;
  virtual void synchronize() = 0;
  /// Page-locks host memory, so that copies are faster. The memory must outlive the result. Null:
  /// the device gains nothing by it. Throws Error when the driver refuses.
  virtual std::shared_ptr<void> lock_pages(std::byte* /*data*/, std::int64_t /*bytes*/) {
    return nullptr;
  }

  /// Returns a plain matrix in the form in which this device multiplies it. On the host that is the
  /// matrix itself. On CUDA it is a copy in bf16, in upload_bytes(host) bytes of device memory at
  /// `storage`. Packed matrices have one form on every device; copy_in copies them.
  virtual Matrix upload(const Matrix& host, std::byte* storage) = 0;
  /// Takes packed_bytes() of memory. To be called before the first product with packed weights.
  /// Throws OutOfMemory.
  virtual void prepare_packed() {}

  /// Returns whether replay saves time on this device.
  virtual bool replays() const { return false; }
  /// Does work, and records it. On CUDA later calls replay the recording at the price of one
  /// launch.
  ///
  /// REQUIRES: `work` makes equal calls with equal arguments each time. It calls only the
  /// operations below up to to_operand, without embed.
  virtual void replay(std::unique_ptr<Recording>& /*recording*/,
                      const std::function<void()>& work) {
    work();
  }

  /// out[t] = row tokens[t] of the table. out: [tokens, in_features]. REQUIRES: 0 <= token <
  /// table.out_features.
  virtual void embed(const Matrix& table, std::span<const Token> tokens, float* out) = 0;

  /// out = x W^T (+ out when accumulate). x: operand [tokens, in_features], out: [tokens,
  /// out_features].
  virtual void matmul(const Matrix& weight, const std::byte* x, std::int64_t tokens,
                      bool accumulate, float* out) = 0;

  /// Multiplies several matrices with one x, in one launch if the device can.
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

  /// x[row] += RMSNorm of from[row] over width, in float32. It adds the output of attention or MLP,
  /// normalised, to the residual.
  virtual void add_norm(const float* from, const float* weight, std::int64_t rows,
                        std::int64_t width, float epsilon, float* x) = 0;

  /// Applies RMSNorm in place, in float32: the q/k-norm over a head, or over all heads of a token.
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

  /// out = max(gate, 0) * up, element by element, as an operand. gate may be up, for its square
  /// above 0.
  virtual void relu_multiply(const float* gate, const float* up, std::int64_t count,
                             std::byte* out) = 0;

  /// out = g sigmoid(1.702 g) (u + 1), as an operand (gpt-oss). g is gate, at most `limit`; u is
  /// up, clamped to -limit and limit.
  virtual void clamped_silu_multiply(const float* gate, const float* up, float limit,
                                     std::int64_t count, std::byte* out) = 0;

  /// x[token, head] *= sigmoid(lse - sinks[head]). It adds one more score to the softmax, whose row
  /// of V is 0: a merge with the partial (0, sink). lse: [tokens, heads]; x: [tokens, heads,
  /// head_dim].
  virtual void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens,
                            std::int64_t heads, std::int64_t head_dim, float* x) = 0;

  /// Takes a Gated DeltaNet layer's next tokens (topkv/recurrence.h).
  virtual void gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step) = 0;

  /// Takes a Mamba-2 layer's next tokens (topkv/recurrence.h), up to y.
  virtual void mamba2(const Mamba2& net, const Mamba2Step& step) = 0;

  /// out[row] = x[row] silu(gate[row]), normalised by RMSNorm over each of `groups` runs of a row,
  /// as an operand. x, gate, out: [rows, width]; weight: [width], a multiple of groups.
  virtual void norm_gated(const float* x, const float* gate, const float* weight, std::int64_t rows,
                          std::int64_t width, std::int64_t groups, float epsilon,
                          std::byte* out) = 0;

  /// Takes a short convolution layer's next tokens (topkv/recurrence.h).
  virtual void short_convolution(const ShortConvolution& net, const ShortConvolutionStep& step) = 0;

  /// Takes one token from operand to operand: the product with gate_weights, gated_delta, then
  /// gated_norm.
  virtual void gated_delta_token(const GatedDeltaNet& net, const GatedDeltaToken& token) {
    matmul(*token.gate_weights, token.x, 1, false, token.gates);
    GatedDeltaStep step = token.step;
    step.gates = token.gates;
    gated_delta(net, step);
    gated_norm(step.out, token.z, token.norm, net.value_heads, net.value_dim, token.epsilon,
               token.out);
  }

  /// out[row] = RMSNorm of x[row] over width, times silu(gate[row]), as an operand.
  virtual void gated_norm(const float* x, const float* gate, const float* weight, std::int64_t rows,
                          std::int64_t width, float epsilon, std::byte* out) = 0;

  /// Parts pairs of runs: from [rows, 2, width] to first [rows, width] and second [rows, width].
  virtual void part_pairs(const float* from, std::int64_t rows, std::int64_t width, float* first,
                          float* second) = 0;

  /// Copies runs. They do not overlap.
  virtual void copy_runs(const float* from, const RunsCopy& runs, float* to) = 0;

  /// out = x sigmoid(gate), element by element, as an operand.
  virtual void sigmoid_multiply(const float* gate, const float* x, std::int64_t count,
                                std::byte* out) = 0;

  /// x[row] *= sigmoid(weights[row]). x: [rows, width].
  virtual void scale_rows(const float* weights, std::int64_t rows, std::int64_t width,
                          float* x) = 0;

  /// Chooses experts by scores [tokens, experts]. Writes ids and weights [tokens, k], the highest
  /// score first. Every id is the id of an expert, whatever the scores are.
  virtual void route(const float* scores, std::int64_t tokens, const Routing& routing,
                     std::int32_t* ids, float* weights) = 0;

  /// out[r] = W x[r / sharing] + bias, with W and bias of row r's expert, in one launch if the
  /// device can. x: operand. Sorted rows are multiplied expert by expert, which replay cannot do.
  virtual void expert_products(std::span<const ExpertProduct> all, const std::byte* x,
                               std::int64_t sharing, const ExpertRows& rows) = 0;

  /// out[r] = x[slots[r] / sharing], for operands of `width` elements.
  virtual void gather(const std::byte* x, const std::int32_t* slots, std::int64_t count,
                      std::int64_t sharing, std::int64_t width, std::byte* out) = 0;

  /// x[t] += the sum over j in [0, k), in this order, of weights[t, j] from[place of slot t k + j].
  /// places: [tokens, k]; null: a slot's place is its number. x: [tokens, width].
  virtual void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                            std::int64_t tokens, std::int64_t k, std::int64_t width, float* x) = 0;

  /// weights[slot] *= scales[ids[slot]], for `slots` slots that route has chosen. scales:
  /// [experts].
  virtual void scale_by_expert(const float* scales, const std::int32_t* ids, std::int64_t slots,
                               float* weights) = 0;

  /// x = 0.
  virtual void clear(std::int64_t count, float* x) = 0;

  /// x += from.
  virtual void add(const float* from, std::int64_t count, float* x) = 0;

  /// to = from.
  virtual void copy(const float* from, std::int64_t count, float* to) = 0;

  /// x *= factor.
  virtual void scale(float factor, std::int64_t count, float* x) = 0;

  /// out = x as an operand.
  virtual void to_operand(const float* x, std::int64_t count, std::byte* out) = 0;

  /// Returns the index of the largest of `count` logits; the first if several are equal. Waits for
  /// it.
  virtual Token argmax(const float* logits, std::int64_t count) = 0;

  /// Merges `other` into `into`, in the device's memory (topkv::merge). stream: the stream that is
  /// to use `into`, as AttentionStep::stream.
  virtual void merge(PartialView into, PartialView other, void* stream) = 0;

  /// Makes the attention of a prefill in steps of at most `chunk` tokens. Throws OutOfMemory, and
  /// Unsupported for a head_dim or row dtype that the device does not know. REQUIRES: without rows
  /// before the store's, every layer of attention has one number of rows, and the store has room
  /// for the whole prefill.
  virtual std::unique_ptr<DevicePrefill> prefill_attention(const AttentionShape& shape,
                                                           const PrefillVisibility& visible,
                                                           std::int64_t chunk,
                                                           const PrefillRows& rows) = 0;

  /// Makes an encoder: it makes the codes of vectors of `dim` elements in page-locked memory. Null:
  /// the host's threads make them. The device must outlive it. Throws OutOfMemory.
  virtual std::unique_ptr<CodeEncoder> code_encoder(std::int64_t /*dim*/) { return nullptr; }

  /// Makes a clusterer of vectors of `dim` elements. Null: the host's threads cluster. The device
  /// must outlive it.
  virtual std::unique_ptr<Clusterer> clusterer(std::int64_t /*dim*/) { return nullptr; }

  /// Copies the codes of a context to the device. heads: [layers x kv_heads], without keys for a
  /// layer that has no index. Rows outlive the call.
  ///
  /// It locks the device itself, for a part of the work at a time. REQUIRES: scans_codes(shape),
  /// and the caller does not hold the lock. Throws OutOfMemory.
  virtual std::shared_ptr<const DeviceIndex> keep_codes(const AttentionShape& /*shape*/,
                                                        std::span<const HeadCodes> /*heads*/) {
    return nullptr;
  }

  /// Copies the key summaries of a context to the device. heads: [layers x kv_heads], of
  /// KeySummaryKind::none for a layer that has no index. They are read during the call alone.
  ///
  /// It locks the device as keep_codes does. REQUIRES: selects(shape, the most entries of a head).
  /// Throws OutOfMemory.
  virtual std::shared_ptr<const DeviceIndex> keep_selection(
      const AttentionShape& /*shape*/, std::span<const KeySummaries> /*heads*/) {
    return nullptr;
  }

  /// Copies rows of a context to the device, as they are stored: of the first of `layers`
  /// (ascending, with rows of their own) whose rows take at most `budget` bytes together. Sessions
  /// that ask for the same layers share a copy. Null: no layer's rows fit, or the device attends no
  /// rows that scans find.
  ///
  /// It locks the device as keep_codes does. Throws OutOfMemory when the device has less room than
  /// the budget's layers take.
  virtual std::shared_ptr<const RowCopy> copy_rows(const AttentionShape& /*shape*/,
                                                   const std::shared_ptr<const RowStore>& /*rows*/,
                                                   std::span<const std::int64_t> /*layers*/,
                                                   std::int64_t /*budget*/) {
    return nullptr;
  }

  /// Makes the device's side of a session's decode step.
  virtual DecodeBackend decode_backend(const SessionShape& shape) = 0;
};

/// Returns the device of the host's cores, which lives as long as the program.
const std::shared_ptr<ComputeDevice>& host_device();

/// Opens the CUDA device of a number (gpu/). Device::open has the contract.
std::shared_ptr<ComputeDevice> open_gpu(int number, std::int64_t memory_ceiling);
/// Returns the number of CUDA devices; 0 when the first cannot be used.
int gpu_count();
/// Returns why gpu_count() is 0. Empty when it is not.
std::string gpu_reason();
/// Returns the sizes of a CUDA device, which need not be there. Throws Unsupported in a build
/// without CUDA.
std::shared_ptr<const DeviceSizes> gpu_sizes();

}  // namespace topkv
