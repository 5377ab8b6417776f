#include "src/context/prefill_visibility.h"

#include <fmt/format.h>

#include <algorithm>

#include "topkv/error.h"

namespace topkv {
namespace {

/// Rounded up to whole blocks of keys.
BlockBudget budget(const PrefillAttention& attention) {
  if (attention.keys < 1 || attention.least_keys < 0 || attention.least_keys > attention.keys ||
      !(attention.mass > 0) || attention.mass > 1) {
    throw InvalidArgument(fmt::format(
        "sparse prefill of up to {} keys, {} or more, and a mass of {}; expected 1 key or more, a "
        "least number from 0 to that, and a mass above 0 and up to 1",
        attention.keys, attention.least_keys, attention.mass));
  }
  constexpr std::int64_t no_text = std::int64_t{1} << 40;  // has as many keys
  const auto whole = [=](std::int64_t keys) {
    return (std::min(keys, no_text) + key_block - 1) / key_block * key_block;
  };
  return {whole(attention.keys), whole(attention.least_keys), attention.mass, attention.measure};
}

/// Throws Unsupported for what cannot be done in sparse mode.
void check_sparse(const AttentionShape& shape, const PrefillAttention& attention, bool on_cuda) {
  if (const std::string refusal = sparse_refusal(shape, attention, on_cuda); !refusal.empty())
    throw Unsupported(refusal);
  if (attention.measure && on_cuda) {
    throw Unsupported(
        "the measured share of attention of a sparse prefill on a CUDA device; the host "
        "(--device cpu) has it, both have an estimate");
  }
}

LayerVisibility visible(const AttentionShape& shape, std::int64_t layer,
                        const PrefillAttention& attention) {
  if (!shape.is_attention(layer)) return CausalWindow{1, 0};  // it attends nothing
  if (const std::int64_t sliding = shape.window_of(layer); sliding > 0)
    return CausalWindow{sliding, 0};
  if (attention.mode == Prefill::dense) return {};
  if (attention.window < 1 || attention.sinks < 0) {
    throw InvalidArgument(
        fmt::format("prefill window of {} tokens with {} sinks; expected at least 1 and 0",
                    attention.window, attention.sinks));
  }
  const CausalWindow window{attention.window, attention.sinks};
  if (attention.mode == Prefill::window) return window;
  return {window, budget(attention)};
}

}  // namespace

std::string_view name_of(Prefill mode) {
  switch (mode) {
    case Prefill::dense:
      return "dense";
    case Prefill::window:
      return "window";
    case Prefill::sparse:
      return "sparse";
    case Prefill::automatic:
      break;
  }
  return "auto";
}

Prefill parse_prefill(std::string_view name) {
  for (const Prefill mode :
       {Prefill::automatic, Prefill::dense, Prefill::sparse, Prefill::window}) {
    if (name == name_of(mode)) return mode;
  }
  throw InvalidArgument(
      fmt::format("prefill is '{}'; expected 'auto', 'dense', 'sparse' or 'window'", name));
}

std::string sparse_refusal(const AttentionShape& shape, const PrefillAttention& attention,
                           bool on_cuda) {
  if (shape.chunk_len % query_block != 0) {
    return fmt::format(
        "a sparse prefill of attention in chunks of {} tokens; expected a multiple of {}; read the "
        "text in mode dense or window",
        shape.chunk_len, query_block);
  }
  if (!on_cuda) return {};
  constexpr std::string_view instead =
      "read the text in mode dense or window, or on the host (--device cpu)";
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.attends_all(layer) || shape.group() <= most_choosing_heads_on_cuda) continue;
    return fmt::format(
        "a sparse prefill with {} query heads for each KV head on a CUDA device; expected at most "
        "{}; {}",
        shape.group(), most_choosing_heads_on_cuda, instead);
  }
  if (attention.keys > most_chosen_keys_on_cuda) {
    return fmt::format(
        "a sparse prefill of up to {} keys on a CUDA device; expected at most {}; take fewer keys, "
        "or {}",
        attention.keys, most_chosen_keys_on_cuda, instead);
  }
  return {};
}

PrefillAttention resolve_prefill(PrefillAttention attention, const AttentionShape& shape,
                                 std::int64_t tokens, bool on_cuda) {
  if (attention.mode == Prefill::automatic) {
    const bool dense = tokens <= (on_cuda ? longest_dense_on_cuda : longest_dense_on_host) ||
                       !sparse_refusal(shape, attention, on_cuda).empty();
    attention.mode = dense ? Prefill::dense : Prefill::sparse;
  }
  if (attention.mode == Prefill::sparse) check_sparse(shape, attention, on_cuda);
  return attention;
}

PrefillAttention fitting_prefill(const PrefillAttention& attention, const AttentionShape& shape,
                                 std::int64_t tokens, const DeviceSizes& device,
                                 const PrefillRoom& room) {
  PrefillAttention fitting = resolve_prefill(attention, shape, tokens, device.is_cuda());
  const bool chosen = attention.mode == Prefill::automatic && fitting.mode == Prefill::sparse;
  if (!chosen || !device.is_cuda()) return fitting;
  const std::int64_t bytes = device.allocation_bytes(device.prefill_attention_bytes(
      shape, prefill_visibility(shape, fitting, true), room.rows, room.chunk, room.capacity));
  if (bytes > room.bytes) fitting.mode = Prefill::dense;
  return fitting;
}

PrefillVisibility prefill_visibility(const AttentionShape& shape, const PrefillAttention& attention,
                                     bool on_cuda) {
  if (attention.mode == Prefill::automatic) {
    throw InvalidArgument(
        "prefill 'auto' without the length of the text, on which it depends; expected 'dense', "
        "'sparse' or 'window' (resolve_prefill chooses for a length)");
  }
  if (attention.mode == Prefill::sparse) check_sparse(shape, attention, on_cuda);
  PrefillVisibility all;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    all.push_back(visible(shape, layer, attention));
  }
  return all;
}

}  // namespace topkv
