#include "gpu/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "gpu/attention/prefill.h"
#include "gpu/attention/step_io.h"
#include "gpu/codes/codes.h"
#include "gpu/entries/cuda_summaries.h"
#include "gpu/entries/top_entries.h"
#include "gpu/network/elementwise.h"
#include "gpu/network/experts.h"
#include "gpu/network/gated_delta.h"
#include "gpu/network/mamba2.h"
#include "gpu/network/short_convolution.h"
#include "gpu/runtime/page_lock.h"
#include "gpu/runtime/phase_clock.h"
#include "gpu/runtime/recording.h"
#include "gpu/session/context_window.h"
#include "gpu/session/decode.h"
#include "gpu/session/row_copy.h"
#include "gpu/session/step_workspaces.h"
#include "src/core/math/convert.h"
#include "src/core/threads/threads.h"
#include "src/device/host/experts.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

// More than they take anywhere: another process began to use the device in that moment.
constexpr std::int64_t most_libraries_bytes = 1536 * mib;
// Up to this many tokens it takes less time to read codes again and again than to unpack them: for
// each byte of int4 codes unpacking writes, and the product reads, four.
constexpr std::int64_t few_tokens = 64;

std::string name_of(int number) {
  cudaDeviceProp properties{};
  TOPKV_CUDA(cudaGetDeviceProperties(&properties, number));
  return fmt::format("{} (cuda:{})", properties.name, number);
}

std::shared_ptr<Arena> make_arena(int number, std::int64_t ceiling, const DriverMemory& driver) {
  std::int64_t libraries = driver.taken().value_or(unmeasured_libraries_bytes);
  if (libraries > most_libraries_bytes) libraries = unmeasured_libraries_bytes;
  if (ceiling == 0) {
    std::size_t left = 0;
    std::size_t total = 0;
    TOPKV_CUDA(cudaMemGetInfo(&left, &total));
    const std::int64_t free_at_start =
        std::min(static_cast<std::int64_t>(left) + libraries, static_cast<std::int64_t>(total));
    ceiling = free_at_start / 10 * 9;
  }
  return Arena::make(number, ceiling, libraries + lazy_code_bytes, driver);
}

const __nv_bfloat16* bf16(const std::byte* data) {
  return reinterpret_cast<const __nv_bfloat16*>(data);
}
__nv_bfloat16* bf16(std::byte* data) { return reinterpret_cast<__nv_bfloat16*>(data); }

/// Over large pieces, while the caller holds the device's lock.
template <class Body>
void fill_parallel(std::int64_t count, const Body& body) {
  constexpr std::int64_t grain = 1 << 17;
  if (count <= grain) {
    body(std::int64_t{0}, count);
  } else {
    parallel_for_alone(count, grain, body);
  }
}

/// to[i] = value i of from, for i in [0, count), as bf16.
void convert(const std::byte* from, DType dtype, std::int64_t count, std::byte* to) {
  if (dtype == DType::bf16) {
    std::memcpy(to, from, static_cast<std::size_t>(count * bytes_of(dtype)));
    return;
  }
  std::array<float, 2048> values;
  const auto most = static_cast<std::int64_t>(values.size());
  for (std::int64_t i = 0; i < count; i += most) {
    const std::int64_t n = std::min(most, count - i);
    to_float(from + i * bytes_of(dtype), dtype, n, values.data());
    from_float(values.data(), n, DType::bf16, to + i * bytes_of(DType::bf16));
  }
}

class DeviceState final : public StateMemory {
 public:
  DeviceState(CudaDevice& device, Buffer values) : device_(device), values_(std::move(values)) {}

  bool on_host() const override { return false; }
  float* data() override { return values_.floats(); }
  const float* data() const override { return values_.floats(); }
  void read(std::span<float> values) const override {
    const DeviceLock lock = device_.lock();
    device_.copy_out(values_.data(), values_.bytes(), values.data());
  }

 private:
  CudaDevice& device_;
  Buffer values_;
};

}  // namespace

CudaDevice::CudaDevice(int number, std::int64_t ceiling, const DriverMemory& driver)
    : number_(number),
      name_(name_of(number)),
      limits_(vector_limits(number)),
      cublas_(stream_),
      arena_(make_arena(number, ceiling, driver)),
      tokens_(arena_->allocate(embed_tokens * std::int64_t{sizeof(Token)}, "device")),
      argmax_scratch_(arena_->allocate(argmax_scratch_bytes(), "device")),
      argmax_best_(arena_->allocate(sizeof(Token), "device")),
      argmax_result_(sizeof(Token)),
      staging_(stream_) {
  cublas_.set_workspace(arena_->allocate(Cublas::workspace_bytes, "matrix product workspace"));
  try_kernels();
  most_candidates_ = most_candidates();
}

// What was begun must end before the memory that it uses goes.
CudaDevice::~CudaDevice() {
  cudaSetDevice(number_);
  cudaStreamSynchronize(stream_);
}

void CudaDevice::try_kernels() {
  TOPKV_CUDA(
      cudaMemsetAsync(tokens_.data(), 0, static_cast<std::size_t>(tokens_.bytes()), stream_));
  try {
    to_bf16(tokens_.floats(), 1, bf16(argmax_best_.data()), stream_);
    stream_.synchronize();
  } catch (const Error& error) {
    throw Unsupported(fmt::format(
        "{} cannot run this topkv's kernels: {}; build it with CMAKE_CUDA_ARCHITECTURES=native",
        name_, error.what()));
  }
}

DeviceLock CudaDevice::lock() {
  ++waiting_;
  std::unique_lock lock(mutex_);
  --waiting_;
  ++taken_;
  TOPKV_CUDA(cudaSetDevice(number_));
  return lock;
}

// A mutex goes to who comes first, and that is mostly the thread that has just given it back.
void CudaDevice::let_others() const {
  constexpr int short_waits = 64;  // then who has the lock keeps it for longer than a step's part
  const std::int64_t until = taken_ + waiting_;
  for (int waits = 0; waiting_ > 0 && taken_ < until; ++waits) {
    if (waits < short_waits) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

std::unique_ptr<PhaseClock> CudaDevice::phase_clock() {
  return std::make_unique<CudaPhaseClock>(stream_);
}

std::shared_ptr<StateMemory> CudaDevice::make_state(std::int64_t size) {
  return std::make_shared<DeviceState>(*this,
                                       allocate(size * bytes_of(DType::f32), "recurrent states"));
}

void CudaDevice::copy_in(const void* host, std::int64_t bytes, std::byte* to) {
  const auto* from = static_cast<const std::byte*>(host);
  staging_.send(bytes, to, [from](std::byte* piece, std::int64_t first, std::int64_t count) {
    fill_parallel(count, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(piece + begin, from + first + begin, static_cast<std::size_t>(end - begin));
    });
  });
}

void CudaDevice::copy_out(const std::byte* from, std::int64_t bytes, void* host) {
  TOPKV_CUDA(cudaMemcpyAsync(host, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost,
                             stream_));
  stream_.synchronize();
}

std::shared_ptr<void> CudaDevice::lock_pages(std::byte* data, std::int64_t bytes) {
  const DeviceLock current = lock();
  return page_lock(data, bytes);
}

Matrix CudaDevice::upload(const Matrix& host, std::byte* storage) {
  const std::int64_t size = bytes_of(DType::bf16);
  staging_.send(upload_bytes(host), storage,
                [&](std::byte* piece, std::int64_t first, std::int64_t count) {
                  const std::byte* from = host.data + first / size * bytes_of(host.dtype);
                  fill_parallel(count / size, [&](std::int64_t begin, std::int64_t end) {
                    convert(from + begin * bytes_of(host.dtype), host.dtype, end - begin,
                            piece + begin * size);
                  });
                });
  return {storage, DType::bf16, host.out_features, host.in_features};
}

void CudaDevice::embed(const Matrix& table, std::span<const Token> tokens, float* out) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  auto* ids = reinterpret_cast<Token*>(tokens_.data());
  for (std::int64_t first = 0; first < count; first += embed_tokens) {
    const std::int64_t n = std::min(embed_tokens, count - first);
    // In the order of the stream, so after the kernel that reads the tokens before these.
    copy_in(tokens.data() + first, n * std::int64_t{sizeof(Token)}, tokens_.data());
    float* to = out + first * table.in_features;
    if (table.packed()) {
      unpack_embedding(table, ids, n, to, stream_);
    } else {
      gpu::embed(bf16(table.data), ids, n, table.in_features, to, stream_);
    }
  }
}

void CudaDevice::matmul(const Matrix& weight, const std::byte* x, std::int64_t tokens,
                        bool accumulate, float* out) {
  if (!weight.packed()) {
    cublas_.multiply(bf16(weight.data), weight.out_features, weight.in_features, bf16(x), tokens,
                     accumulate, out, weight.out_features);
  } else if (const Product one{weight, nullptr, out};
             packed_vectors(&one, 1, bf16(x), tokens, accumulate, limits_, stream_)) {
    return;
  } else if (tokens <= few_tokens && weight.packing != Packing::fp4) {  // of which it takes none
    for (std::int64_t t = 0; t < tokens; t += most_packed_tokens) {
      packed_product(weight, bf16(x) + t * weight.in_features,
                     std::min(most_packed_tokens, tokens - t), accumulate,
                     out + t * weight.out_features, stream_);
    }
  } else {
    multiply_unpacked(weight, bf16(x), tokens, accumulate, out);
  }
}

void CudaDevice::products(std::span<const Product> all, const std::byte* x, std::int64_t tokens,
                          bool accumulate) {
  if (all.empty() || tokens == 0) return;
  if (!packed_vectors(all.data(), static_cast<std::int64_t>(all.size()), bf16(x), tokens,
                      accumulate, limits_, stream_))
    ComputeDevice::products(all, x, tokens, accumulate);
}

std::int64_t CudaDevice::packed_bytes() const {
  return unpacked_.data() == nullptr ? unpacked_bytes : 0;
}

void CudaDevice::prepare_packed() {
  if (unpacked_.data() == nullptr) unpacked_ = arena_->allocate(unpacked_bytes, "unpacked weights");
}

void CudaDevice::multiply_unpacked(const Matrix& weight, const __nv_bfloat16* x,
                                   std::int64_t tokens, bool accumulate, float* out) {
  const std::int64_t row_bytes = weight.in_features * bytes_of(DType::bf16);
  std::int64_t most = std::max<std::int64_t>(1, unpacked_.bytes() / row_bytes);
  if (most > 128) most = most / 128 * 128;  // whole tiles of the product
  for (std::int64_t first = 0; first < weight.out_features; first += most) {
    const std::int64_t rows = std::min(most, weight.out_features - first);
    unpack_rows(weight, first, rows, bf16(unpacked_.data()), stream_);
    cublas_.multiply(bf16(unpacked_.data()), rows, weight.in_features, x, tokens, accumulate,
                     out + first, weight.out_features);
  }
}

void CudaDevice::add_bias(const float* bias, std::int64_t rows, std::int64_t width, float* x) {
  gpu::add_bias(bias, rows, width, x, stream_);
}

void CudaDevice::rms_norm(const float* x, const float* weight, std::int64_t rows,
                          std::int64_t width, float epsilon, std::byte* out) {
  gpu::rms_norm(x, weight, rows, width, epsilon, bf16(out), stream_);
}

void CudaDevice::add_norm(const float* from, const float* weight, std::int64_t rows,
                          std::int64_t width, float epsilon, float* x) {
  gpu::add_norm(from, weight, rows, width, epsilon, x, stream_);
}

void CudaDevice::head_norm(const float* weight, std::int64_t rows, std::int64_t width,
                           float epsilon, float* x) {
  gpu::rms_norm(x, weight, rows, width, epsilon, x, stream_);
}

void CudaDevice::rope(const RopeAngles& angles, std::int64_t tokens, std::int64_t heads,
                      std::int64_t head_dim, float* x) {
  const std::int64_t turned = angles.rotary_dim > 0 ? angles.rotary_dim : head_dim;
  gpu::rope(angles.cos, angles.sin, tokens, heads, {head_dim, turned, angles.interleaved}, x,
            stream_);
}

void CudaDevice::silu_multiply(const float* gate, const float* up, std::int64_t count,
                               std::byte* out) {
  gpu::silu_multiply(gate, up, count, bf16(out), stream_);
}

void CudaDevice::gelu_multiply(const float* gate, const float* up, std::int64_t count,
                               std::byte* out) {
  gpu::gelu_multiply(gate, up, count, bf16(out), stream_);
}

void CudaDevice::relu_multiply(const float* gate, const float* up, std::int64_t count,
                               std::byte* out) {
  gpu::relu_multiply(gate, up, count, bf16(out), stream_);
}

void CudaDevice::clamped_silu_multiply(const float* gate, const float* up, float limit,
                                       std::int64_t count, std::byte* out) {
  gpu::clamped_silu_multiply(gate, up, limit, count, bf16(out), stream_);
}

void CudaDevice::attend_sinks(const float* sinks, const float* lse, std::int64_t tokens,
                              std::int64_t heads, std::int64_t head_dim, float* x) {
  gpu::attend_sinks(sinks, lse, tokens, heads, head_dim, x, stream_);
}

void CudaDevice::gated_delta(const GatedDeltaNet& net, const GatedDeltaStep& step) {
  gpu::gated_delta(net, step, stream_);
}

void CudaDevice::mamba2(const Mamba2& net, const Mamba2Step& step) {
  gpu::mamba2(net, step, stream_);
}

void CudaDevice::norm_gated(const float* x, const float* gate, const float* weight,
                            std::int64_t rows, std::int64_t width, std::int64_t groups,
                            float epsilon, std::byte* out) {
  gpu::norm_gated(x, gate, weight, rows, width, groups, epsilon, bf16(out), stream_);
}

void CudaDevice::short_convolution(const ShortConvolution& net, const ShortConvolutionStep& step) {
  gpu::short_convolution(net, step, stream_);
}

void CudaDevice::gated_delta_token(const GatedDeltaNet& net, const GatedDeltaToken& token) {
  if (!gpu::gated_delta_token(net, token, stream_)) ComputeDevice::gated_delta_token(net, token);
}

void CudaDevice::gated_norm(const float* x, const float* gate, const float* weight,
                            std::int64_t rows, std::int64_t width, float epsilon, std::byte* out) {
  gpu::gated_norm(x, gate, weight, rows, width, epsilon, bf16(out), stream_);
}

void CudaDevice::copy_runs(const float* from, const RunsCopy& runs, float* to) {
  gpu::copy_runs(from, runs, to, stream_);
}

void CudaDevice::part_pairs(const float* from, std::int64_t rows, std::int64_t width, float* first,
                            float* second) {
  gpu::part_pairs(from, rows, width, first, second, stream_);
}

void CudaDevice::sigmoid_multiply(const float* gate, const float* x, std::int64_t count,
                                  std::byte* out) {
  gpu::sigmoid_multiply(gate, x, count, bf16(out), stream_);
}

void CudaDevice::scale_rows(const float* weights, std::int64_t rows, std::int64_t width, float* x) {
  gpu::scale_rows(weights, rows, width, x, stream_);
}

void CudaDevice::route(const float* scores, std::int64_t tokens, const Routing& routing,
                       std::int32_t* ids, float* weights) {
  gpu::route(scores, tokens, routing, ids, weights, stream_);
}

void CudaDevice::expert_products(std::span<const ExpertProduct> all, const std::byte* x,
                                 std::int64_t sharing, const ExpertRows& rows) {
  if (!rows.ends.empty()) return multiply_each_expert(*this, all, x, sharing, rows);
  if (!gpu::expert_products(all.data(), static_cast<std::int64_t>(all.size()), bf16(x), sharing,
                            rows.experts, rows.count, limits_, stream_)) {
    throw Unsupported(
        fmt::format("experts' weights with {} inputs: {} has {} bytes of shared memory for a "
                    "block, too few for "
                    "these inputs; run this model on the host",
                    all.front().weights->form.in_features, name_, limits_.block_bytes));
  }
}

void CudaDevice::gather(const std::byte* x, const std::int32_t* slots, std::int64_t count,
                        std::int64_t sharing, std::int64_t width, std::byte* out) {
  gpu::gather(bf16(x), slots, count, sharing, width, bf16(out), stream_);
}

void CudaDevice::add_weighted(const float* from, const float* weights, const std::int32_t* places,
                              std::int64_t tokens, std::int64_t k, std::int64_t width, float* x) {
  gpu::add_weighted(from, weights, places, tokens, k, width, x, stream_);
}

void CudaDevice::scale_by_expert(const float* scales, const std::int32_t* ids, std::int64_t slots,
                                 float* weights) {
  gpu::scale_by_expert(scales, ids, slots, weights, stream_);
}

void CudaDevice::clear(std::int64_t count, float* x) {
  TOPKV_CUDA(cudaMemsetAsync(x, 0, static_cast<std::size_t>(count) * sizeof(float), stream_));
}

void CudaDevice::add(const float* from, std::int64_t count, float* x) {
  gpu::add(from, count, x, stream_);
}

void CudaDevice::copy(const float* from, std::int64_t count, float* to) {
  TOPKV_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream_));
}

void CudaDevice::merge(PartialView into, PartialView other, void* stream) {
  StepParts parts;
  parts.exact = into;
  parts.found = other;
  give_step(parts, into, stream_);
  if (const auto user = static_cast<cudaStream_t>(stream); user != nullptr) {
    merged_.record(stream_);
    merged_.block(user);
  }
}

void CudaDevice::scale(float factor, std::int64_t count, float* x) {
  gpu::scale(factor, count, x, stream_);
}

void CudaDevice::to_operand(const float* x, std::int64_t count, std::byte* out) {
  to_bf16(x, count, bf16(out), stream_);
}

Token CudaDevice::argmax(const float* logits, std::int64_t count) {
  if (count == 0) throw InvalidArgument("argmax of no logits; expected at least one");
  auto* best = reinterpret_cast<Token*>(argmax_best_.data());
  gpu::argmax(logits, count, best, argmax_scratch_.data(), stream_);
  copy_out(argmax_best_.data(), sizeof(Token), argmax_result_.data());
  return *argmax_result_.as<Token>();
}

void CudaDevice::replay(std::unique_ptr<Recording>& recording, const std::function<void()>& work) {
  if (!recording) recording = std::make_unique<CudaRecording>();
  static_cast<CudaRecording&>(*recording).run(stream_, work);
}

CudnnAttention* CudaDevice::cudnn() {
  if (!looked_for_cudnn_ && CudnnAttention::available(nullptr)) {
    cudnn_ = std::make_unique<CudnnAttention>();
  }
  looked_for_cudnn_ = true;
  return cudnn_.get();
}

std::shared_ptr<const ContextWindow> CudaDevice::context_window(const SessionShape& shape) {
  return windows_.get([&](const ContextWindow& window) { return window.suits(shape); },
                      [&] { return std::make_shared<const ContextWindow>(*this, shape); });
}

std::shared_ptr<StepWorkspaces> CudaDevice::step_workspaces(const SessionShape& shape) {
  return workspaces_.get([&](const StepWorkspaces& workspaces) { return workspaces.suits(shape); },
                         [&] { return std::make_shared<StepWorkspaces>(*this, shape); });
}

std::unique_ptr<DevicePrefill> CudaDevice::prefill_attention(const AttentionShape& shape,
                                                             const PrefillVisibility& visible,
                                                             std::int64_t chunk,
                                                             const PrefillRows& rows) {
  return make_prefill_attention(*this, shape, visible, chunk, rows);
}

std::shared_ptr<const DeviceIndex> CudaDevice::keep_codes(const AttentionShape& shape,
                                                          std::span<const HeadCodes> heads) {
  return std::make_shared<const CudaCodes>(*this, shape, heads);
}

bool CudaDevice::selects(const AttentionShape& shape, std::int64_t entries) const {
  return CudaSummaries::supports(shape, entries, most_candidates_);
}

std::shared_ptr<const DeviceIndex> CudaDevice::keep_selection(const AttentionShape& shape,
                                                              std::span<const KeySummaries> heads) {
  return std::make_shared<const CudaSummaries>(*this, shape, heads);
}

std::shared_ptr<const RowCopy> CudaDevice::copy_rows(const AttentionShape& shape,
                                                     const std::shared_ptr<const RowStore>& rows,
                                                     std::span<const std::int64_t> layers,
                                                     std::int64_t budget) {
  const std::vector<std::int64_t> fit = layers_that_fit(*rows, shape, layers, budget);
  if (fit.empty()) return nullptr;
  const std::lock_guard one(row_copies_mutex_);
  return row_copies_.get(
      [&](const CudaRowCopy& copy) { return copy.suits(*rows, fit); },
      [&] { return std::make_shared<const CudaRowCopy>(*this, shape, rows, fit); });
}

DecodeBackend CudaDevice::decode_backend(const SessionShape& shape) {
  return make_decode_backend(*this, shape);
}

}  // namespace topkv::gpu
