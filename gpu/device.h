// A CUDA device for the forward pass. All operations run on one compute stream, in the order of the
// calls. All memory comes from one arena.
//
// Threads: allocate and memory are safe from many threads. The thread that holds lock() calls
// everything else. lock() makes the device current in that thread, and leaves it current.
// Arithmetic allocates nothing. It waits only if the staging ring is full.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "gpu/attention/cudnn_attention.h"
#include "gpu/build/clusterer.h"
#include "gpu/build/code_encoder.h"
#include "gpu/cuda_sizes.h"
#include "gpu/network/packed_product.h"
#include "gpu/runtime/arena.h"
#include "gpu/runtime/cublas.h"
#include "gpu/runtime/driver_memory.h"
#include "gpu/runtime/handles.h"
#include "gpu/runtime/shared_list.h"
#include "gpu/runtime/staging.h"
#include "src/device/compute_device.h"

namespace topkv::gpu {

class ContextWindow;
class CudaRowCopy;
class StepWorkspaces;

/// Implements ComputeDevice.
class CudaDevice final : public WithCudaSizes<ComputeDevice> {
 public:
  /// Opens device `number`, which is current in the calling thread. ceiling: bytes, with the CUDA
  /// context; 0 means nine tenths of the free memory. driver: made before the context. Throws
  /// OutOfMemory if the ceiling is too low, Unsupported if this build has no code for the device's
  /// architecture.
  CudaDevice(int number, std::int64_t ceiling, const DriverMemory& driver);
  ~CudaDevice() override;

  const Stream& compute_stream() const { return stream_; }
  Arena& arena() { return *arena_; }
  Cublas& cublas() { return cublas_; }
  /// cuDNN, which the first call loads. Null if this process cannot use it.
  CudnnAttention* cudnn();
  /// The rows of a context that sessions of this shape share. The first session makes them; the
  /// last one frees them. Throws like the constructor of ContextWindow.
  std::shared_ptr<const ContextWindow> context_window(const SessionShape& shape);
  /// The workspaces that sessions of this shape share. The first session makes them; the last one
  /// frees them. Throws like the constructor of StepWorkspaces.
  std::shared_ptr<StepWorkspaces> step_workspaces(const SessionShape& shape);

  std::string name() const override { return name_; }
  DeviceMemory memory() const override { return arena_->memory(); }
  DeviceLock lock() override;
  /// Waits until the threads that wait for the lock now have had it. Call it before each lock in a
  /// loop. REQUIRES: the caller does not hold the lock.
  void let_others() const;
  std::unique_ptr<PhaseClock> phase_clock() override;

  Buffer allocate(std::int64_t bytes, std::string_view what) override {
    return arena_->allocate(bytes, what);
  }
  std::shared_ptr<StateMemory> make_state(std::int64_t size) override;
  void copy_in(const void* host, std::int64_t bytes, std::byte* to) override;
  void copy_out(const std::byte* from, std::int64_t bytes, void* host) override;
  void synchronize() override { stream_.synchronize(); }
  std::shared_ptr<void> lock_pages(std::byte* data, std::int64_t bytes) override;
  Matrix upload(const Matrix& host, std::byte* storage) override;
  std::int64_t packed_bytes() const override;
  void prepare_packed() override;

  bool replays() const override { return true; }
  void replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) override;

  void embed(const Matrix& table, std::span<const Token> tokens, float* out) override;
  void matmul(const Matrix& weight, const std::byte* x, std::int64_t tokens, bool accumulate,
              float* out) override;
  void products(std::span<const Product> all, const std::byte* x, std::int64_t tokens,
                bool accumulate) override;
  void add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x) override;
  void rms_norm(const float* x, const float* weight, std::int64_t rows, std::int64_t width,
                float epsilon, std::byte* out) override;
  void add_norm(const float* from, const float* weight, std::int64_t rows, std::int64_t width,
                float epsilon, float* x) override;
  void head_norm(const float* weight, std::int64_t rows, std::int64_t width, float epsilon,
                 float* x) override;
  void rope(const RopeAngles& angles, std::int64_t tokens, std::int64_t heads,
            std::int64_t head_dim, float* x) override;
  void silu_multiply(const float* gate, const float* up, std::int64_t count,
                     std::byte* out) override;
  void gelu_multiply(const float* gate, const float* up, std::int64_t count,
                     std::byte* out) override;
  void relu_multiply(const float* gate, const float* up, std::int64_t count,
                     std::byte* out) override;
  void clamped_silu_multiply(const float* gate, const float* up, float limit, std::int64_t count,
                             std::byte* out) override;
  void attend_sinks(const float* sinks, const float* lse, std::int64_t tokens, std::int64_t heads,
                    std::int64_t head_dim, float* x) override;
  void gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step) override;
  void mamba2(const Mamba2& net, const Mamba2Step& step) override;
  void norm_gated(const float* x, const float* gate, const float* weight, std::int64_t rows,
                  std::int64_t width, std::int64_t groups, float epsilon, std::byte* out) override;
  void short_convolution(const ShortConvolution& net, const ShortConvolutionStep& step) override;
  void gated_delta_token(const GatedDeltaNet& net, const GatedDeltaToken& token) override;
  void gated_norm(const float* x, const float* gate, const float* weight, std::int64_t rows,
                  std::int64_t width, float epsilon, std::byte* out) override;
  void copy_runs(const float* from, const RunsCopy& runs, float* to) override;
  void part_pairs(const float* from, std::int64_t rows, std::int64_t width, float* first,
                  float* second) override;
  void sigmoid_multiply(const float* gate, const float* x, std::int64_t count,
                        std::byte* out) override;
  void scale_rows(const float* weights, std::int64_t rows, std::int64_t width, float* x) override;
  void route(const float* scores, std::int64_t tokens, const Routing& routing, std::int32_t* ids,
             float* weights) override;
  void expert_products(std::span<const ExpertProduct> all, const std::byte* x, std::int64_t sharing,
                       const ExpertRows& rows) override;
  void gather(const std::byte* x, const std::int32_t* slots, std::int64_t count,
              std::int64_t sharing, std::int64_t width, std::byte* out) override;
  void add_weighted(const float* from, const float* weights, const std::int32_t* places,
                    std::int64_t tokens, std::int64_t k, std::int64_t width, float* x) override;
  void scale_by_expert(const float* scales, const std::int32_t* ids, std::int64_t slots,
                       float* weights) override;
  void clear(std::int64_t count, float* x) override;
  void add(const float* from, std::int64_t count, float* x) override;
  void copy(const float* from, std::int64_t count, float* to) override;
  void scale(float factor, std::int64_t count, float* x) override;
  void to_operand(const float* x, std::int64_t count, std::byte* out) override;
  Token argmax(const float* logits, std::int64_t count) override;

  void merge(PartialView into, PartialView other, void* stream) override;

  std::unique_ptr<DevicePrefill> prefill_attention(const AttentionShape& shape,
                                                   const PrefillVisibility& visible,
                                                   std::int64_t chunk,
                                                   const PrefillRows& rows) override;
  std::unique_ptr<CodeEncoder> code_encoder(std::int64_t dim) override {
    return make_code_encoder(*this, dim);
  }
  std::unique_ptr<Clusterer> clusterer(std::int64_t dim) override {
    return make_clusterer(*this, dim);
  }
  std::shared_ptr<const DeviceIndex> keep_codes(const AttentionShape& shape,
                                                std::span<const HeadCodes> heads) override;
  bool selects(const AttentionShape& shape, std::int64_t entries) const override;
  std::shared_ptr<const DeviceIndex> keep_selection(const AttentionShape& shape,
                                                    std::span<const KeySummaries> heads) override;
  std::shared_ptr<const RowCopy> copy_rows(const AttentionShape& shape,
                                           const std::shared_ptr<const RowStore>& rows,
                                           std::span<const std::int64_t> layers,
                                           std::int64_t budget) override;
  DecodeBackend decode_backend(const SessionShape& shape) override;

 private:
  /// Runs one kernel, and throws if the device has no code for it.
  void try_kernels();
  /// A product with many tokens. It unpacks some rows of the weight at a time, as many as fit into
  /// unpacked_.
  void multiply_unpacked(const Matrix& weight, const __nv_bfloat16* x, std::int64_t tokens,
                         bool accumulate, float* out);

  const int number_;
  const std::string name_;
  const VectorLimits limits_;
  std::recursive_mutex mutex_;
  std::atomic<std::int64_t> waiting_ = 0;  // threads that wait for the mutex
  std::atomic<std::int64_t> taken_ = 0;    // times that the mutex was taken
  Stream stream_;
  Cublas cublas_;
  std::unique_ptr<CudnnAttention> cudnn_;  // null: not loaded yet, or not available
  bool looked_for_cudnn_ = false;
  std::int64_t most_candidates_ = 0;  // most candidates of a choice
  std::shared_ptr<Arena> arena_;      // made after the libraries whose memory it measures
  Buffer tokens_;                     // [embed_tokens] token ids
  Buffer argmax_scratch_;
  Buffer argmax_best_;          // one Token
  PinnedBuffer argmax_result_;  // its host copy
  Buffer unpacked_;             // rows of packed weights in bf16; empty before prepare_packed
  Staging staging_;
  Event merged_;  // orders results for a caller's stream
  SharedList<const ContextWindow> windows_;
  SharedList<StepWorkspaces> workspaces_;
  std::mutex row_copies_mutex_;  // guards row_copies_, and is held while one is made
  SharedList<const CudaRowCopy> row_copies_;
};

}  // namespace topkv::gpu
