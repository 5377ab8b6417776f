#include "gpu/build/code_encoder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "gpu/attention/row_blocks.h"
#include "gpu/build/code_encode.h"
#include "gpu/device.h"
#include "gpu/runtime/faults.h"
#include "index/common/in_place_keys.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t tile_vectors = 16384;  // coded at a time
constexpr std::int64_t slot_count = 3;        // tiles under way
constexpr std::int64_t most_bytes = 128;      // of a code

/// Pieces of device memory, one behind the other.
struct EncodingRoom {
  std::int64_t axes, mean, channels, bias, tables, not_finite, centred, along, rows, blocks, codes,
      residuals, total;

  explicit EncodingRoom(std::int64_t dim) {
    const std::int64_t f32 = bytes_of(DType::f32);
    Pieces pieces;
    axes = pieces.place(dim * dim * f32);
    mean = pieces.place(dim * f32);
    channels = pieces.place(dim * f32);
    bias = pieces.place(3 * dim * f32);
    tables = pieces.place(dim * std::int64_t{sizeof(KeyLevels)} +
                          most_bytes * 4 * std::int64_t{sizeof(KeyField)});
    not_finite = pieces.place(sizeof(int));
    centred = pieces.place(tile_vectors * dim * f32);
    along = pieces.place(tile_vectors * dim * f32);
    rows = pieces.place(slot_count * tile_vectors * dim * bytes_of(DType::bf16));
    blocks = pieces.place(slot_count * tile_vectors * vector_bytes(DType::q8, dim));
    codes = pieces.place(slot_count * tile_vectors * most_bytes);
    residuals = pieces.place(slot_count * tile_vectors * f32);
    total = pieces.used();
  }
};

/// One head at a time, in tiles: while one is coded, the next come and the last one's codes are
/// copied to where they belong. Whoever holds the device's lock here runs nothing on the host's
/// threads, which may be waiting for that lock themselves.
class CudaEncoder final : public CodeEncoder {
 public:
  CudaEncoder(CudaDevice& device, std::int64_t dim)
      : device_(device),
        dim_(dim),
        layout_(dim),
        memory_(device.allocate(layout_.total, "coding")),
        tables_(layout_.centred),
        out_(slot_count * tile_vectors * (most_bytes + bytes_of(DType::f32))),
        slots_(static_cast<std::size_t>(slot_count)) {}

  void encode(const KeyCoder& coder, const KeyView& keys, std::uint8_t* codes,
              float* residuals) override {
    const auto lock = device_.lock();
    std::vector<KeyLevels> levels;
    for (const EvenLevels& of : coder.levels()) {
      levels.push_back(
          {of.low, of.step, of.step > 0 ? 1 / of.step : 0.0F, static_cast<float>(of.most)});
    }
    std::vector<KeyField> fields(static_cast<std::size_t>(4 * coder.bytes()), KeyField{-1, 0});
    for (const KeyCoder::Slot& slot : coder.slots()) {
      fields[static_cast<std::size_t>(4 * coder.byte_of(slot) + coder.bit_of(slot) / 2)] = {
          static_cast<short>(slot.axis), static_cast<short>(slot.shift)};
    }
    const std::int64_t axes = std::ssize(levels);
    send_axes(coder.axes(), axes);
    const std::int64_t fields_at = layout_.tables + axes * std::int64_t{sizeof(KeyLevels)};
    send(std::span<const KeyLevels>(levels), layout_.tables);
    send(std::span<const KeyField>(fields), fields_at);
    const float per_scale = 1 / coder.axes().scale();
    const auto use = [&](const Tile& tile) {
      encode_keys({.along = at<float>(layout_.along),
                   .stride = tile_vectors,
                   .count = static_cast<int>(tile.count),
                   .axes = static_cast<int>(axes),
                   .bytes = static_cast<int>(coder.bytes()),
                   .levels = at<KeyLevels>(layout_.tables),
                   .fields = at<KeyField>(fields_at),
                   .per_scale = per_scale,
                   .codes = tile.codes,
                   .residuals = tile.residuals},
                  device_.compute_stream());
    };
    const Head head{coder.axes(), keys,
                    axes,         [&](std::int64_t n) { return coder.bytes_for(n); },
                    codes,        residuals};
    run(head, use);
  }

  void encode(const ValueCoder& coder, const KeyView& values, std::uint8_t* codes) override {
    const auto lock = device_.lock();
    std::vector<float2> levels;
    std::vector<std::uint32_t> seeds;
    for (std::int64_t axis = 0; axis < coder.bits(); ++axis) {
      const auto i = static_cast<std::size_t>(axis);
      levels.push_back({coder.low()[i], coder.high()[i] - coder.low()[i]});
      seeds.push_back(ValueCoder::seed_of_axis(axis));
    }
    const std::int64_t axes = coder.bits();
    send_axes(coder.axes(), axes);
    const std::int64_t seeds_at = layout_.tables + axes * std::int64_t{sizeof(float2)};
    send(std::span<const float2>(levels), layout_.tables);
    send(std::span<const std::uint32_t>(seeds), seeds_at);
    const auto use = [&](const Tile& tile) {
      encode_values({.along = at<float>(layout_.along),
                     .stride = tile_vectors,
                     .first = tile.first,
                     .count = static_cast<int>(tile.count),
                     .axes = static_cast<int>(axes),
                     .lanes = static_cast<int>(coder.lanes()),
                     .levels = at<float2>(layout_.tables),
                     .seeds = at<std::uint32_t>(seeds_at),
                     .codes = tile.codes},
                    device_.compute_stream());
    };
    const Head head{coder.axes(), values, axes, [&](std::int64_t n) { return coder.bytes_for(n); },
                    codes,        nullptr};
    run(head, use);
  }

 private:
  struct Tile {
    std::int64_t first, count;
    std::uint8_t* codes;
    float* residuals;
  };
  struct Head {
    const CodeAxes& axes;
    const KeyView& vectors;
    std::int64_t coded_axes;
    std::function<std::int64_t(std::int64_t vectors)> bytes_for;
    std::uint8_t* codes;
    float* residuals;  // null: not wanted
  };
  struct Slot {
    Event arrived, done;
    std::int64_t first = 0, count = 0;  // that it holds codes of; 0: taken out
  };

  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }

  /// What is learned of a head, through page-locked memory as it lies on the device.
  template <class T>
  void send(std::span<const T> from, std::int64_t to) {
    if (from.empty()) return;
    std::memcpy(tables_.data() + to, from.data(), from.size_bytes());
    TOPKV_CUDA(cudaMemcpyAsync(memory_.data() + to, tables_.data() + to, from.size_bytes(),
                               cudaMemcpyHostToDevice, device_.compute_stream()));
  }

  void send_axes(const CodeAxes& axes, std::int64_t count) {
    if (count > 0)
      send(std::span(axes.axis(0), static_cast<std::size_t>(count * dim_)), layout_.axes);
    send(std::span<const float>(axes.mean()), layout_.mean);
    const int none = 0;
    send(std::span(&none, 1), layout_.not_finite);
  }

  template <class Use>
  void run(const Head& head, const Use& use) {
    try {
      if (head.vectors.channels != nullptr)
        send(std::span(head.vectors.channels, static_cast<std::size_t>(dim_)), layout_.channels);
      if (head.vectors.bias != nullptr)
        send(std::span(head.vectors.bias, static_cast<std::size_t>(3 * dim_)), layout_.bias);
      for (std::int64_t first = 0, tile = 0; first < head.vectors.count;
           first += tile_vectors, ++tile) {
        const std::int64_t slot = tile % slot_count;
        take_out(head, slot);
        begin(head, slot, first, std::min(tile_vectors, head.vectors.count - first), use);
      }
      for (std::int64_t slot = 0; slot < slot_count; ++slot) take_out(head, slot);
      int not_finite = 0;
      device_.copy_out(memory_.data() + layout_.not_finite, sizeof not_finite, &not_finite);
      std::vector<float> one(static_cast<std::size_t>(dim_));
      for (std::int64_t i = 0; not_finite != 0 && i < head.vectors.count; ++i)
        widen_key(head.vectors, i, one.data());  // says which
    } catch (...) {
      // Nothing may be under way to or from memory that goes.
      cudaStreamSynchronize(copies_);
      cudaStreamSynchronize(device_.compute_stream());
      for (Slot& slot : slots_) slot.count = 0;
      throw;
    }
  }

  template <class Use>
  void begin(const Head& head, std::int64_t number, std::int64_t first, std::int64_t count,
             const Use& use) {
    const cudaStream_t compute = device_.compute_stream();
    Slot& slot = slots_[static_cast<std::size_t>(number)];
    auto* rows = at<__nv_bfloat16>(layout_.rows) + number * tile_vectors * dim_;
    const Tile tile{first, count,
                    at<std::uint8_t>(layout_.codes) + number * tile_vectors * most_bytes,
                    at<float>(layout_.residuals) + number * tile_vectors};
    const bool blocked = in_blocks(head.vectors.dtype);
    std::byte* blocks =
        memory_.data() + layout_.blocks + number * tile_vectors * vector_bytes(DType::q8, dim_);
    inject_copy_delay(copies_);
    TOPKV_CUDA(cudaMemcpyAsync(blocked ? blocks : reinterpret_cast<std::byte*>(rows),
                               head.vectors.key(first),
                               static_cast<std::size_t>(count * head.vectors.stride_bytes),
                               cudaMemcpyHostToDevice, copies_));
    slot.arrived.record(copies_);
    slot.arrived.block(compute);
    if (blocked) {
      StoredKeys stored;
      if (head.vectors.channels != nullptr) stored.channels = at<float>(layout_.channels);
      if (head.vectors.bias != nullptr) stored.bias = at<float>(layout_.bias);
      stored.first_position = head.vectors.first_position + first;
      stored.chunk_len = head.vectors.chunk_len;
      unpack_blocks(blocks, 0, count, 1, dim_, head.vectors.dtype, stored, rows, 0, compute);
    }
    centre(rows, static_cast<int>(count), static_cast<int>(dim_), head.axes.scale(),
           at<float>(layout_.mean), at<float>(layout_.centred), tile.residuals,
           at<int>(layout_.not_finite), compute);
    device_.cublas().project(at<float>(layout_.axes), head.coded_axes, dim_,
                             at<float>(layout_.centred), count, at<float>(layout_.along),
                             tile_vectors);
    use(tile);
    const auto copy_out = [&](const void* from, std::byte* to, std::int64_t bytes) {
      TOPKV_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost,
                                 compute));
    };
    copy_out(tile.codes, codes_out(number), head.bytes_for(count));
    if (head.residuals != nullptr)
      copy_out(tile.residuals, residuals_out(number), count * bytes_of(DType::f32));
    slot.done.record(compute);
    slot.first = first;
    slot.count = count;
  }

  /// Copies what the slot holds to where it belongs.
  void take_out(const Head& head, std::int64_t number) {
    Slot& slot = slots_[static_cast<std::size_t>(number)];
    if (slot.count == 0) return;
    slot.done.synchronize();
    std::memcpy(head.codes + head.bytes_for(slot.first), codes_out(number),
                static_cast<std::size_t>(head.bytes_for(slot.count)));
    if (head.residuals != nullptr) {
      std::memcpy(head.residuals + slot.first, residuals_out(number),
                  static_cast<std::size_t>(slot.count) * sizeof(float));
    }
    slot.count = 0;
  }

  std::byte* codes_out(std::int64_t slot) const {
    return out_.data() + slot * tile_vectors * most_bytes;
  }
  std::byte* residuals_out(std::int64_t slot) const {
    return out_.data() + slot_count * tile_vectors * most_bytes +
           slot * tile_vectors * bytes_of(DType::f32);
  }

  CudaDevice& device_;
  const std::int64_t dim_;
  const EncodingRoom layout_;
  Buffer memory_;
  PinnedBuffer tables_;  // as the device's, up to where tiles begin
  PinnedBuffer out_;     // codes of each slot, then residuals of each
  std::vector<Slot> slots_;
  Stream copies_;
};

}  // namespace

std::unique_ptr<CodeEncoder> make_code_encoder(CudaDevice& device, std::int64_t dim) {
  if (dim > most_coded_axes) return nullptr;
  const auto lock = device.lock();
  return std::make_unique<CudaEncoder>(device, dim);
}

}  // namespace topkv::gpu
