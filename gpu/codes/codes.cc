#include "gpu/codes/codes.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "gpu/codes/code_format.cuh"
#include "gpu/codes/code_stages.h"
#include "gpu/device.h"
#include "gpu/long_work.h"
#include "index/codes/value_codes.h"
#include "src/core/math/convert.h"
#include "src/core/math/row_format.h"
#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

/// That a unit has for keys' codes of so many bytes, for values of so many bits.
int key_bytes_for(std::int64_t bytes) {
  return bytes <= 16 ? 16 : bytes <= 32 ? 32 : most_key_bytes;
}
int value_bytes_for(std::int64_t bits) {
  return bits == 0 ? 0 : bits <= 64 ? 8 : bits <= 128 ? 16 : most_value_bytes;
}
int scan_tokens_for(const AttentionShape& shape) {
  return static_cast<int>(std::min<std::int64_t>(scan_batch, scan_heads / shape.kv_heads));
}

/// What all scans over such codes have in common.
CodeScan scan_of(const AttentionShape& shape, int key_bytes, int value_bytes) {
  CodeScan scan;
  scan.key_bytes = key_bytes;
  scan.value_bytes = value_bytes;
  scan.kv_heads = static_cast<int>(shape.kv_heads);
  scan.group = static_cast<int>(shape.group());
  scan.head_dim = static_cast<int>(shape.head_dim);
  scan.scale = shape.softmax_scale();
  scan.softcap = shape.softcap;
  scan.tokens = 0;
  return scan;
}

/// Where what is known of a head lies.
HeadTables tables_of(const AttentionShape& shape) {
  return {code_dims(static_cast<int>(shape.head_dim))};
}

/// Of the form of a head's shared errors.
std::int64_t shared_form_floats(const AttentionShape& shape) {
  const std::int64_t dims = tables_of(shape).dims;
  return dims * dims;
}

/// A head's codes as the host lays them out: of its keys, and of its values behind them.
struct StagedBytes {
  std::int64_t keys, values;

  /// lanes: 0: values have none.
  StagedBytes(std::int64_t count, std::int64_t key_bytes, std::int64_t lanes)
      : keys((count + unit_keys - 1) / unit_keys * unit_keys * key_bytes),
        values((count + unit_keys - 1) / unit_keys * (unit_keys / 4) * lanes) {}
  explicit StagedBytes(const HeadCodes& head)
      : StagedBytes(head.rows.count(), head.key_bytes,
                    head.values == nullptr ? 0 : head.value_lanes) {}
  std::int64_t both() const { return keys + values; }
};

}  // namespace

/// Where everything lies.
struct CudaCodes::Layout {
  struct Layer {
    std::int64_t units, tables, rare, rare_keys, rare_before, errors, shared_forms;
  };
  int key_bytes, value_bytes;
  std::int64_t head_bytes, rare_slots, unit_slots;
  std::vector<Layer> layers;  // those without codes have no bytes
  std::int64_t coefficients, scales, plans, maxima, count, arrived, rare_arrived, listed_arrived,
      tail_arrived, corrections, tail_masses, sums, masses, outs, lses, listed_outs, listed_lses,
      bytes;
  std::int64_t scores;  // of a scan; before there is one, a head's codes on their way

  Layout(const AttentionShape& shape, const std::vector<bool>& has_codes, std::int64_t tokens,
         std::int64_t rare, int key_bytes, int value_bytes, std::int64_t staged, int scan_tokens,
         int splits)
      : key_bytes(key_bytes),
        value_bytes(value_bytes),
        head_bytes((tokens + unit_keys - 1) / unit_keys * unit_bytes(key_bytes, value_bytes)),
        rare_slots(rare),
        unit_slots((tokens + unit_keys - 1) / unit_keys) {
    const std::int64_t f32 = bytes_of(DType::f32);
    const std::int64_t heads = shape.kv_heads;
    Pieces pieces;
    for (const bool has : has_codes) {
      const std::int64_t n = has ? heads : 0;
      Layer layer{};
      layer.units = pieces.place(n * head_bytes);
      layer.tables = pieces.place(n * tables_of(shape).floats(key_bytes) * f32);
      layer.rare = pieces.place(n * 2 * rare_slots * shape.head_dim * bytes_of(DType::bf16));
      layer.rare_keys = pieces.place(n * rare_slots * std::int64_t{sizeof(int)});
      layer.rare_before = pieces.place(n * (unit_slots + 1) * std::int64_t{sizeof(int)});
      layer.errors = pieces.place(n * std::int64_t{sizeof(HeadErrors)});
      const std::int64_t forms = value_bytes > 0 ? n : 0;  // else there is no tail
      layer.shared_forms = pieces.place(forms * shared_form_floats(shape) * f32);
      layers.push_back(layer);
    }
    const std::int64_t head_steps = scan_tokens * heads;
    const std::int64_t group = head_steps * code_group;
    const std::int64_t form_steps =
        std::max(head_steps, shape.chunk_len > 0 ? query_forms * heads : 0);
    const std::int64_t partials = scan_rare_parts * scan_tokens * shape.q_heads;
    const std::int64_t blocks = std::max(heads * splits, head_steps);  // CudaCodes::splits
    coefficients = pieces.place(form_steps * 16 * key_slots(key_bytes));
    scales = pieces.place(form_steps * code_group * std::int64_t{sizeof(QueryScale)});
    plans = pieces.place(form_steps * code_group * std::int64_t{sizeof(QueryPlan)});
    scores = pieces.place(std::max(group * most_sampled * f32, staged));
    maxima = pieces.place(group * most_sampled / maximum_keys * f32);
    count = pieces.place(scan_lists * head_steps * std::int64_t{sizeof(int)});
    arrived = pieces.place(head_steps * std::int64_t{sizeof(int)});
    rare_arrived = pieces.place(head_steps * std::int64_t{sizeof(int)});
    listed_arrived = pieces.place(heads * std::int64_t{sizeof(int)});
    const std::int64_t tails = scan_tokens * shape.q_heads;
    tail_arrived = pieces.place(tails * std::int64_t{sizeof(int)});
    corrections =
        pieces.place(tails * scan_correction_parts * std::int64_t{sizeof(CorrectionSums)});
    tail_masses = pieces.place(tails * 2 * f32);
    sums = pieces.place(blocks * code_group * sum_axes(value_bytes) * f32);
    masses = pieces.place(blocks * code_group * 2 * f32);
    outs = pieces.place(partials * shape.head_dim * f32);
    lses = pieces.place(partials * f32);
    listed_outs = pieces.place(scan_listed_parts * shape.q_heads * shape.head_dim * f32);
    listed_lses = pieces.place(scan_listed_parts * shape.q_heads * f32);
    bytes = pieces.used();
  }
};

bool CudaCodes::supports(const AttentionShape& shape) {
  return shape.head_dim <= most_code_dims && shape.head_dim % 4 == 0 &&
         shape.group() <= code_group && shape.kv_heads <= scan_heads;
}

CudaCodes::CudaCodes(CudaDevice& device, const AttentionShape& shape,
                     std::span<const HeadCodes> heads)
    : shape_(shape) {
  std::vector<bool> has_codes;
  std::int64_t tokens = 0;
  std::int64_t rare = 0;
  std::int64_t bytes = 0;  // of a key
  std::int64_t bits = 0;   // of a value
  std::int64_t staged = 0;
  for (std::size_t i = 0; i < heads.size(); ++i) {
    const HeadCodes& head = heads[i];
    if (i % static_cast<std::size_t>(shape.kv_heads) == 0)
      has_codes.push_back(head.keys != nullptr);
    tokens_ = std::max(tokens_, head.rows.count());
    rare_.emplace_back(head.rare.begin(), head.rare.end());
    tokens = std::max(tokens, head.rows.count() - std::ssize(head.rare));
    rare = std::max(rare, std::ssize(head.rare));
    bytes = std::max(bytes, head.key_bytes);
    bits = std::max(bits, head.value_bits);
    staged = std::max(staged, StagedBytes(head).both());
  }
  const int key_bytes = key_bytes_for(bytes);
  const int value_bytes = value_bytes_for(bits);
  LongWork work(device);
  splits_ = scan_splits(scan_of(shape, key_bytes, value_bytes));
  early_ = can_scan_early();
  scan_tokens_ = scan_tokens_for(shape);
  layout_ = std::make_unique<const Layout>(shape, has_codes, tokens, rare, key_bytes, value_bytes,
                                           staged, scan_tokens_, splits_);
  memory_ = device.allocate(layout_->bytes, "codes of rows");
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!has_codes[static_cast<std::size_t>(layer)]) continue;
    place(device, work, layer,
          heads.subspan(static_cast<std::size_t>(layer * shape.kv_heads),
                        static_cast<std::size_t>(shape.kv_heads)),
          *layout_);
  }
  const std::vector<int> none(static_cast<std::size_t>(scan_tokens_ * shape.q_heads), 0);
  const auto clear = [&](std::int64_t counts, std::int64_t count) {
    work.copy_in(none.data(), count * std::int64_t{sizeof(int)}, memory_.data() + counts);
  };
  clear(layout_->arrived, scan_tokens_ * shape.kv_heads);
  clear(layout_->rare_arrived, scan_tokens_ * shape.kv_heads);
  clear(layout_->listed_arrived, shape.kv_heads);
  clear(layout_->tail_arrived, std::ssize(none));
  work.wait();
}

CudaCodes::~CudaCodes() = default;

std::int64_t CudaCodes::bytes(const AttentionShape& shape, std::int64_t tokens,
                              std::int64_t key_bytes, std::int64_t value_bits, std::int64_t rare) {
  std::vector<bool> has_codes;
  for (std::int64_t l = 0; l < shape.layers; ++l) has_codes.push_back(shape.has_index(l));
  const int of_key = key_bytes_for(key_bytes);
  const int of_value = value_bytes_for(value_bits);
  // Of a large device: this one need not be there, and they take little.
  constexpr std::int64_t many_blocks = 1024;
  const auto splits =
      static_cast<int>(std::clamp<std::int64_t>(many_blocks / shape.kv_heads, 1, most_splits));
  const StagedBytes staged(tokens, key_bytes, ValueCoder::lanes_for(value_bits));
  return Layout(shape, has_codes, tokens, rare, of_key, of_value, staged.both(),
                scan_tokens_for(shape), splits)
      .bytes;
}

void CudaCodes::place(CudaDevice& device, const LongWork& work, std::int64_t layer,
                      std::span<const HeadCodes> heads, const Layout& layout) {
  const Layout::Layer& to = layout.layers[static_cast<std::size_t>(layer)];
  const std::int64_t row = shape_.head_dim * bytes_of(DType::bf16);
  const auto copy = [&](const auto& from, std::int64_t offset) {
    if (from.empty()) return;
    work.copy_in(from.data(), static_cast<std::int64_t>(from.size() * sizeof(from[0])),
                 memory_.data() + offset);
  };
  for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
    const HeadCodes& head = heads[static_cast<std::size_t>(h)];
    const std::int64_t n = head.rows.count();
    const auto rare_count = std::ssize(head.rare);

    const HeadTables table = tables_of(shape_);
    const std::int64_t floats = table.floats(layout.key_bytes);
    std::vector<float> tables(static_cast<std::size_t>(floats), 0.0F);
    const auto same = [](std::int64_t row) { return row; };
    const auto fill = [&](std::vector<float>& rows, std::span<const float> from, int offset,
                          const auto& row_of) {
      for (std::int64_t i = 0; i < std::ssize(from); ++i) {
        rows[static_cast<std::size_t>(offset + row_of(i / shape_.head_dim) * table.dims +
                                      i % shape_.head_dim)] = from[static_cast<std::size_t>(i)];
      }
    };
    fill(tables, head.slots, table.slots, [&](std::int64_t slot) {
      return slot / head.key_bytes * layout.key_bytes + slot % head.key_bytes;
    });
    fill(tables, head.middle, table.middle, same);
    fill(tables, head.errors, table.errors, same);
    fill(tables, head.value_axes, table.values, same);
    fill(tables, head.value_base, table.base, same);
    copy(tables, to.tables + h * floats * bytes_of(DType::f32));

    const std::vector<HeadErrors> errors{
        {head.value_variance, head.value_error_variance, head.shared_unit}};
    copy(errors, to.errors + h * std::int64_t{sizeof(HeadErrors)});
    if (layout.value_bytes > 0) {
      std::vector<float> form(static_cast<std::size_t>(shared_form_floats(shape_)), 0.0F);
      fill(form, head.shared_form, 0, same);
      copy(form, to.shared_forms + h * std::ssize(form) * bytes_of(DType::f32));
    }

    std::vector<int> rare_keys(static_cast<std::size_t>(layout.rare_slots),
                               std::numeric_limits<int>::max());
    std::vector<std::byte> rare(static_cast<std::size_t>(2 * layout.rare_slots * row));
    for (std::int64_t i = 0; i < rare_count; ++i) {
      const std::int64_t position = head.rare[static_cast<std::size_t>(i)];
      rare_keys[static_cast<std::size_t>(i)] = static_cast<int>(position - i);
      const auto put = [&](const KeyView& half, std::int64_t slot) {
        std::vector<float> wide(static_cast<std::size_t>(shape_.head_dim));
        decode(half, position, wide.data());
        from_float(wide.data(), shape_.head_dim, DType::bf16,
                   &rare[static_cast<std::size_t>(slot * row)]);
      };
      put(head.rows.keys, i);
      put(head.rows.values, layout.rare_slots + i);
    }
    copy(rare_keys, to.rare_keys + h * layout.rare_slots * std::int64_t{sizeof(int)});
    std::vector<int> before;
    for (std::int64_t i = 0, at = 0; i <= layout.unit_slots; ++i) {
      while (at < rare_count && rare_keys[static_cast<std::size_t>(at)] < i * unit_keys) ++at;
      before.push_back(static_cast<int>(at));
    }
    copy(before, to.rare_before + h * std::ssize(before) * std::int64_t{sizeof(int)});
    copy(rare, to.rare + h * 2 * layout.rare_slots * row);
    if (n == rare_count) continue;

    const StagedBytes staged(head);
    auto* const codes = at<std::byte>(layout.scores);
    work.copy_in(head.keys, staged.keys, codes);
    if (staged.values > 0) work.copy_in(head.values, staged.values, codes + staged.keys);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
    work.give([&] {
      encode_units({bytes, static_cast<int>(head.key_bytes), bytes + staged.keys,
                    static_cast<int>(head.value_lanes), static_cast<int>(head.value_bits)},
                   at<int>(to.rare_keys) + h * layout.rare_slots, static_cast<int>(rare_count),
                   static_cast<int>(n - rare_count), layout.key_bytes, layout.value_bytes,
                   at<std::uint8_t>(to.units) + h * layout.head_bytes, device.compute_stream());
    });
  }
}

CodeScan CudaCodes::scan(std::int64_t layer) const {
  const Layout& layout = *layout_;
  const auto own = static_cast<std::size_t>(shape_.row_layer_of(layer));
  const Layout::Layer& from = layout.layers[own];
  CodeScan scan = scan_of(shape_, layout.key_bytes, layout.value_bytes);
  scan.units = at<std::uint8_t>(from.units);
  scan.head_bytes = layout.head_bytes;
  scan.tables = at<float>(from.tables);
  scan.rare = at<__nv_bfloat16>(from.rare);
  scan.rare_keys = at<int>(from.rare_keys);
  scan.rare_before = at<int>(from.rare_before);
  scan.rare_slots = layout.rare_slots;
  scan.unit_slots = layout.unit_slots;
  scan.errors = at<HeadErrors>(from.errors);
  scan.shared_forms = at<float>(from.shared_forms);
  scan.early = early_;
  scan.coefficients = at<std::uint8_t>(layout.coefficients);
  scan.scales = at<QueryScale>(layout.scales);
  scan.plans = at<QueryPlan>(layout.plans);
  scan.scores = at<float>(layout.scores);
  scan.maxima = at<float>(layout.maxima);
  scan.count = at<int>(layout.count);
  scan.arrived = at<int>(layout.arrived);
  scan.rare_arrived = at<int>(layout.rare_arrived);
  scan.sums = at<float>(layout.sums);
  scan.masses = at<float2>(layout.masses);
  scan.parts = {at<float>(layout.outs), at<float>(layout.lses)};
  scan.listed_parts = {at<float>(layout.listed_outs), at<float>(layout.listed_lses)};
  scan.listed_arrived = at<int>(layout.listed_arrived);
  scan.tail_arrived = at<int>(layout.tail_arrived);
  scan.corrections = at<CorrectionSums>(layout.corrections);
  scan.tail_masses = at<float2>(layout.tail_masses);
  return scan;
}

ScanRange CudaCodes::range(std::int64_t layer, std::int64_t kv_head, PositionRange allowed) const {
  const auto at = static_cast<std::size_t>(shape_.row_layer_of(layer) * shape_.kv_heads + kv_head);
  const std::vector<std::int64_t>& rare = rare_[at];
  const std::int64_t end = std::min(allowed.end, tokens_);
  const std::int64_t begin = std::min(allowed.begin, end);
  const auto before = [&](std::int64_t position) {
    return std::lower_bound(rare.begin(), rare.end(), position) - rare.begin();
  };
  const std::int64_t rare_begin = before(begin);
  const std::int64_t rare_end = before(end);
  return {static_cast<int>(begin - rare_begin), static_cast<int>(end - rare_end),
          static_cast<int>(rare_begin), static_cast<int>(rare_end)};
}

}  // namespace topkv::gpu
