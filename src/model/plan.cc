#include <fmt/format.h>

#include <algorithm>

#include "src/attention/block_attention.h"
#include "src/context/prefill_visibility.h"
#include "src/core/text/format_numbers.h"
#include "src/model/draft_sizes.h"
#include "src/model/model_impl.h"
#include "src/model/network/forward.h"
#include "src/session/session_sizes.h"
#include "src/session/turn_reader.h"
#include "src/store/layer_states.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {

namespace {

/// What a text has of recurrent states on a device: the last one, the one before, and the next.
std::int64_t device_states_bytes(const AttentionShape& shape, const DeviceSizes& device) {
  std::int64_t bytes = 0;
  for (const std::int64_t size : shape.state_size)
    if (size > 0) bytes += 3 * device.allocation_bytes(size * bytes_of(DType::f32));
  return bytes;
}

/// What a step of `chunk` tokens takes beside its attention.
std::int64_t network_bytes(const ModelConfig& config, const DeviceSizes& device,
                           std::int64_t chunk) {
  return device.allocation_bytes(Forward::bytes(config, device, chunk)) +
         device_states_bytes(config.attention, device);
}

}  // namespace

std::int64_t prefill_bytes(const ModelConfig& config, const DeviceSizes& device,
                           const PrefillOptions& options, std::int64_t chunk, std::int64_t tokens) {
  const std::int64_t attention = device.prefill_attention_bytes(
      config.attention, prefill_visibility(config.attention, options.attention, device.is_cuda()),
      options.kv_dtype, chunk, tokens);
  return network_bytes(config, device, chunk) + device.allocation_bytes(attention);
}

PrefillAttention fitting_prefill(const ModelConfig& config, const DeviceSizes& device,
                                 const PrefillOptions& options, std::int64_t tokens,
                                 std::int64_t room) {
  // With shorter chunks, all rows of a layer cross to the device so often that dense is quicker.
  constexpr std::int64_t shortest = 2048;
  std::int64_t chunk = options.chunk > 0 ? options.chunk : shortest;
  if (tokens > 0) chunk = std::min(chunk, tokens);
  const std::int64_t network = network_bytes(config, device, chunk);
  return fitting_prefill(
      options.attention, config.attention, tokens, device,
      {.bytes = room - network, .rows = options.kv_dtype, .chunk = chunk, .capacity = tokens});
}

std::int64_t choose_prefill_chunk(const ModelConfig& config, const DeviceSizes& device,
                                  const PrefillOptions& options, std::int64_t tokens,
                                  std::int64_t room) {
  const auto at_most_all = [tokens](std::int64_t chunk) {
    return tokens > 0 ? std::min(chunk, tokens) : chunk;
  };
  if (options.chunk > 0) return at_most_all(options.chunk);
  std::int64_t chunk = device.prefill_chunk();
  // Each chunk in which tokens choose takes all rows of a layer to the device. A text in which none
  // choose is read in the chunks of a dense prefill.
  const auto chooses = [tokens](const LayerVisibility& seen) {
    return seen.chooses() &&
           (tokens == 0 || tokens - seen.blocks.without_choice() > seen.window.window);
  };
  if (device.is_cuda() &&
      std::ranges::any_of(prefill_visibility(config.attention, options.attention, device.is_cuda()),
                          chooses))
    chunk *= 4;
  constexpr std::int64_t smallest = 256;
  while (device.is_cuda() && chunk > smallest &&
         prefill_bytes(config, device, options, chunk, tokens) > room) {
    chunk /= 2;
  }
  return at_most_all(chunk);
}

std::int64_t turn_bytes(const ModelConfig& config, const DeviceSizes& device,
                        const RetrievalOptions& retrieval, KvDType rows, std::int64_t tokens) {
  if (!retrieval.turns) return 0;
  PrefillAttention attention = *retrieval.turns;
  if (attention.mode == Prefill::automatic) attention.mode = Prefill::dense;
  const std::int64_t of_attention = device.prefill_attention_bytes(
      config.attention, prefill_visibility(config.attention, attention, device.is_cuda()), rows,
      turn_chunk, tokens + retrieval.capacity);
  return device.allocation_bytes(Forward::bytes(config, device, most_turn_piece)) +
         device.allocation_bytes(of_attention);
}

DevicePlan plan_device(const ModelConfig& config, const WeightsSize& size,
                       const DeviceSizes& device, const DeviceMemory& memory,
                       PrefillOptions prefill, const RetrievalOptions& retrieval,
                       std::int64_t tokens) {
  device.check_heads(config.attention);
  DevicePlan plan;
  plan.weights_bytes = size.held;
  constexpr std::int64_t any_tokens = std::int64_t{1} << 60;
  if (!device.is_cuda()) {
    plan.prefill = fitting_prefill(config, device, prefill, tokens, 0);
    prefill.attention = plan.prefill;
    plan.chunk = choose_prefill_chunk(config, device, prefill, 0, 0);
    return plan;
  }
  const std::int64_t weights = device.allocation_bytes(size.device) +
                               (size.packed ? device.allocation_bytes(device.packed_bytes()) : 0);
  const std::int64_t step = device.allocation_bytes(Forward::bytes(config, device, session_chunk));
  const std::int64_t always = memory.used + weights + step;
  plan.ceiling = memory.ceiling;
  plan.prefill = fitting_prefill(config, device, prefill, tokens, memory.ceiling - always);
  prefill.attention = plan.prefill;
  plan.chunk = choose_prefill_chunk(config, device, prefill, tokens, memory.ceiling - always);
  const std::int64_t prefilling = prefill_bytes(config, device, prefill, plan.chunk, tokens);
  SessionShape shape = session_shape(config.attention, retrieval, any_tokens);
  shape.rows = prefill.kv_dtype;
  const std::int64_t session = device.allocation_bytes(device.decode_backend_bytes(shape)) +
                               device.allocation_bytes(joined_bytes(shape)) +
                               device_states_bytes(config.attention, device);
  plan.items = {{"CUDA context, libraries, workspaces", memory.used},
                {"weights", weights},
                {"activations of a step", step},
                {fmt::format("prefill in chunks of {} tokens", plan.chunk), prefilling},
                {config.attention.state_size.empty() ? "session: window and sinks"
                                                     : "session: window, sinks, recurrent states",
                 session}};
  const std::int64_t turn = turn_bytes(config, device, retrieval, prefill.kv_dtype, tokens);
  if (turn > 0) plan.items.push_back({"a turn of the session", turn});
  plan.peak = always + std::max(prefilling, session + turn);
  return plan;
}

RetrievalOptions draft_retrieval(std::int64_t window) {
  RetrievalOptions options;
  options.index = "exact";
  options.window = options.capacity = window + few_step_tokens;
  options.sinks = 0;
  return options;
}

std::int64_t draft_window(const ModelConfig& config, const DraftModelOptions& options) {
  if (options.window < least_draft_window || options.window > most_draft_window) {
    throw InvalidArgument(fmt::format("a draft model's window of {} tokens; expected from {} to {}",
                                      options.window, least_draft_window,
                                      format_grouped(most_draft_window)));
  }
  return std::min(options.window, config.reach());
}

std::int64_t draft_session_bytes(const ModelConfig& config, const DraftModelOptions& options) {
  const AttentionShape& shape = config.attention;
  const std::int64_t tokens = draft_retrieval(draft_window(config, options)).capacity;
  // Snapshots, the last state, the one before it, and memory for the next one.
  constexpr std::int64_t states = RecurrentState::most_snapshots + 3;
  return tokens * RowStore::bytes_per_token(shape, options.rows) +
         states * state_values(shape) * bytes_of(DType::f32);
}

DraftBytes draft_bytes(const std::filesystem::path& model, const DraftModelOptions& options,
                       const DeviceSizes& device) {
  ModelConfig config = ModelConfig::load(model, options.window);
  const std::unique_ptr<Checkpoint> checkpoint = Checkpoint::open_or_describe(model);
  Weights::settle_tie(*checkpoint, config);
  device.check_heads(config.attention);
  const WeightsSize size = Weights::size(*checkpoint, config, device, WeightFormat::stored);
  const std::int64_t step = Forward::bytes(config, device, session_chunk);
  DraftBytes bytes;
  bytes.rows = draft_session_bytes(config, options);
  bytes.weights = size.held;
  bytes.activations = step;
  if (!device.is_cuda()) return bytes;
  SessionShape shape =
      session_shape(config.attention, draft_retrieval(draft_window(config, options)), 1);
  shape.rows = options.rows;
  bytes.device =
      device.allocation_bytes(size.device) +
      (size.packed ? device.allocation_bytes(device.packed_bytes()) : 0) +
      device.allocation_bytes(step) + device.allocation_bytes(device.decode_backend_bytes(shape)) +
      device.allocation_bytes(joined_bytes(shape)) + device_states_bytes(config.attention, device);
  return bytes;
}

std::int64_t DraftModel::device_bytes(const std::filesystem::path& model, const Device& device,
                                      const DraftModelOptions& options) {
  return draft_bytes(model, options, *device.compute()).device;
}

DevicePlan Model::plan(const std::filesystem::path& model, const Device& device,
                       const PrefillOptions& prefill, const RetrievalOptions& retrieval,
                       WeightFormat format, std::int64_t tokens, std::int64_t beside) {
  ModelConfig config = ModelConfig::load(model);
  const std::unique_ptr<Checkpoint> checkpoint = Checkpoint::open_or_describe(model);
  const std::string untied = Weights::settle_tie(*checkpoint, config);
  const ComputeDevice& compute = *device.compute();
  DeviceMemory memory = device.memory();
  memory.used += beside;
  DevicePlan plan = plan_device(config, Weights::size(*checkpoint, config, compute, format),
                                compute, memory, prefill, retrieval, tokens);
  plan.quantised = checkpoint->quantised();
  for (const std::string& line : {untied, unread_warning(*checkpoint)}) {
    if (!line.empty()) plan.warnings.push_back(line);
  }
  return plan;
}

}  // namespace topkv
