#include "topkv/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "index/codes/codes_index.h"
#include "index/common/index_factory.h"
#include "src/context/index_on_device.h"
#include "src/core/memory/memory.h"
#include "src/device/compute_device.h"
#include "src/model/draft_layer.h"
#include "src/model/draft_sizes.h"
#include "src/model/model_impl.h"
#include "src/model/network/forward.h"
#include "src/model/network/key_bias.h"
#include "src/model/weights/draft_layer_config.h"
#include "src/session/session_sizes.h"
#include "src/store/layer_states.h"
#include "src/store/row_store.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv {
namespace {

constexpr std::int64_t mib = 1 << 20;
// What a process takes of the host beside what is listed: its code, heap and threads; with CUDA the
// driver's part too, page-locked buffers and tables. Measured, rounded up.
constexpr std::int64_t host_program_bytes = 256 * mib;
constexpr std::int64_t cuda_program_bytes = 1024 * mib;

// KL of the next token that each costs, measured with the bundled model; that of rows in 4 bits is
// set above that of weights in 4 bits, for it loses more needles (docs/explanation/planning.md).
constexpr std::array<std::pair<WeightFormat, double>, 3> weight_losses = {
    {{WeightFormat::stored, 0.0}, {WeightFormat::int8, 0.0026}, {WeightFormat::int4, 0.33}}};
const std::array<std::pair<KvDType, double>, 4> row_losses = {{{KvDType(DType::bf16), 0.0},
                                                               {KvDType(DType::q8), 0.0004},
                                                               {{DType::q8, DType::q4}, 0.0017},
                                                               {KvDType(DType::q4), 0.5}}};
constexpr double smaller_codes_loss = 0.02;

const char* const draft_model_item = "draft model: weights, activations";
const char* const draft_layer_item = "draft layer: weights, activations";

template <class Value>
struct Choice {
  Value value;
  double loss = 0;
};

template <class Value, class Losses>
std::vector<Choice<Value>> choices(const std::optional<Value>& settled, const Losses& losses) {
  if (settled) return {{*settled, 0}};
  std::vector<Choice<Value>> all;
  for (const auto& [value, loss] : losses) all.push_back({value, loss});
  return all;
}

CodesParams params_of(const IndexSpec& spec) {
  const auto index = spec.make();
  return static_cast<const CodesIndex&>(*index).params();
}

std::vector<Choice<std::string>> index_choices(const PlanRequest& request, std::int64_t dim) {
  if (request.index) {
    const IndexSpec spec(*request.index);
    spec.check_index();
    if (spec.text() != "exact" && !spec.factory().traits().has_codes) {
      throw InvalidArgument(
          fmt::format("no plan for the index {}: its memory is known only when it is built; "
                      "expected exact or codes",
                      spec.text()));
    }
    return {{spec.text(), 0}};
  }
  const IndexSpec standard = IndexSpec::default_for(dim);
  const CodesParams params = params_of(standard);
  const IndexSpec smaller(fmt::format("codes:k={},v={}", params.key_bytes / 2, params.value_bytes));
  return {{standard.text(), 0}, {smaller.text(), smaller_codes_loss}};
}

/// What an index takes of the host, and of the GPU where that scans it.
struct IndexBytes {
  std::int64_t host = 0;
  std::int64_t gpu = 0;
};

IndexBytes index_bytes(const AttentionShape& shape, const std::string& text, std::int64_t tokens,
                       const DeviceSizes& device, bool host_search) {
  const IndexSpec spec(text);
  if (spec.text() == "exact") return {};
  const CodesParams params = params_of(spec);
  const std::int64_t of_row =
      params.bytes_of_key(shape.head_dim) + (params.bits_of_value(shape.head_dim) + 7) / 8;
  std::int64_t heads = 0;
  for (std::int64_t l = 0; l < shape.layers; ++l) heads += shape.has_index(l) ? shape.kv_heads : 0;
  RetrievalOptions retrieval;
  retrieval.index = text;
  retrieval.host_search = host_search;
  return {heads * tokens * of_row, device_index_bytes(shape, retrieval, tokens, device)};
}

class Planner {
 public:
  Planner(const std::filesystem::path& model, const PlanRequest& request)
      : request_(request),
        config_(ModelConfig::load(model)),
        checkpoint_(Checkpoint::open_or_describe(model)),
        device_(request.gpu_memory > 0 ? gpu_sizes()
                                       : std::shared_ptr<const DeviceSizes>(host_device())),
        memory_(request.memory > 0 ? request.memory : available_host_memory()) {
    device_->check_heads(config_.attention);
    Weights::settle_tie(*checkpoint_, config_);
    if (!request.draft_model.empty())
      drafts_ = draft_bytes(request.draft_model, request.drafts, *device_);
  }

  std::vector<MemoryPlan> plans() const {
    std::vector<MemoryPlan> plans;
    std::string why;
    for (const auto& weights : choices(request_.weights, weight_losses)) {
      WeightsSize size;
      try {
        size = Weights::size(*checkpoint_, config_, *device_, weights.value);
      } catch (const Unsupported& error) {  // a matrix that this format cannot hold
        if (why.empty()) why = error.what();
        continue;
      }
      for (const auto& rows : choices(request_.rows, row_losses)) {
        // A bias that is not taken off may leave the rest of a key few of 4 bits.
        if (!request_.rows && has_unknown_key_bias(config_) && rows.value.keys == DType::q4)
          continue;
        if (config_.attention.keys_are_values && rows.value.keys != rows.value.values) {
          if (request_.rows) config_.attention.check_rows(rows.value);
          continue;
        }
        if (!device_->takes_rows(rows.value)) {
          if (why.empty())
            why = fmt::format("a CUDA device does not take rows in {}", rows.value.name());
          continue;
        }
        for (const auto& index : index_choices(request_, config_.attention.head_dim)) {
          MemoryPlan plan = one(weights.value, size, rows.value, index.value);
          plan.loss = weights.loss + rows.loss + index.loss;
          plans.push_back(std::move(plan));
        }
      }
    }
    if (plans.empty()) throw Unsupported(why);
    std::ranges::stable_sort(plans, [](const MemoryPlan& a, const MemoryPlan& b) {
      return std::pair(a.loss, -(a.gpu.peak + a.host.peak)) <
             std::pair(b.loss, -(b.gpu.peak + b.host.peak));
    });
    return plans;
  }

 private:
  MemoryPlan one(WeightFormat weights, const WeightsSize& size, KvDType rows,
                 const std::string& index) const {
    MemoryPlan plan;
    plan.weights = weights;
    plan.rows = rows;
    plan.index = index;
    plan.host_search = request_.host_search;
    const AttentionShape& shape = config_.attention;
    const std::int64_t tokens = request_.tokens;
    const IndexBytes of_index = index_bytes(shape, index, tokens, *device_, request_.host_search);
    const bool cuda = device_->is_cuda();
    std::int64_t chunk = 0;  // of the prefill

    PrefillOptions prefill;
    prefill.attention = request_.prefill;
    prefill.kv_dtype = rows;
    if (cuda) {
      DeviceMemory memory;
      memory.ceiling = request_.gpu_memory;
      memory.used = device_->base_bytes() + drafts_.device;
      RetrievalOptions retrieval;
      retrieval.turns = request_.turns;
      const DevicePlan on =
          plan_device(config_, size, *device_, memory, prefill, retrieval, tokens);
      chunk = on.chunk;
      plan.prefill = on.prefill;
      const std::int64_t prefilling = on.items[3].bytes;
      SessionShape scans = session_shape(shape, {}, tokens);
      const std::int64_t codes = of_index.gpu == 0
                                     ? 0
                                     : device_->allocation_bytes(of_index.gpu) +
                                           device_->allocation_bytes(device_->scan_bytes(scans));
      const std::int64_t session = on.items[4].bytes + codes;
      plan.gpu = {on.items, 0, request_.gpu_memory};
      plan.gpu.items.front().bytes -= drafts_.device;
      if (drafts_.device > 0) plan.gpu.items.push_back({draft_model_item, drafts_.device});
      plan.gpu.items.push_back({"codes of the context", codes});
      const std::int64_t turn = turn_bytes(config_, *device_, retrieval, rows, tokens);
      plan.gpu.peak = on.peak - std::max(prefilling, on.items[4].bytes + turn) +
                      std::max(prefilling, session + turn);
    } else {
      plan.prefill = fitting_prefill(config_, *device_, prefill, tokens, 0);
      prefill.attention = plan.prefill;
      chunk = choose_prefill_chunk(config_, *device_, prefill, tokens, 0);
      const std::int64_t pass = request_.turns ? std::max(chunk, most_turn_piece) : chunk;
      plan.host.items = {{"weights", size.held},
                         {fmt::format("activations of {} tokens", pass),
                          Forward::bytes(config_, *device_, pass) +
                              Forward::bytes(config_, *device_, session_chunk)}};
    }
    if (!cuda && drafts_.weights > 0)
      plan.host.items.push_back({draft_model_item, drafts_.weights + drafts_.activations});
    const bool drafts = !cuda && Weights::has_draft_layer(*checkpoint_, config_);
    const ModelConfig layer = draft_layer_config(config_);
    if (drafts) {
      const WeightsSize held = Weights::draft_layer_size(*checkpoint_, config_, *device_, weights);
      plan.host.items.push_back(
          {draft_layer_item, held.held + Forward::bytes(layer, *device_, session_chunk)});
    }
    plan.host.items.push_back({"rows", RowStore::bytes_while_read(shape, rows, tokens, chunk)});
    if (drafts_.rows > 0) plan.host.items.push_back({"rows of the draft model", drafts_.rows});
    if (drafts && drafts_.rows == 0) {  // a draft model takes the layer's place
      plan.host.items.push_back(
          {"states and rows of the draft layer", DraftLayer::session_bytes_of(layer)});
    }
    if (const std::int64_t values = state_values(shape); values > 0) {
      // A snapshot each chunk of the prefill, as many as are kept, and a session's.
      const std::int64_t read =
          std::min((tokens + chunk - 1) / chunk, RecurrentState::most_snapshots);
      plan.host.items.push_back(
          {"recurrent states and snapshots",
           (read + RecurrentState::most_snapshots) * values * bytes_of(DType::f32)});
    }
    if (of_index.host > 0) plan.host.items.push_back({"codes", of_index.host});
    plan.host.items.push_back({"the program", cuda ? cuda_program_bytes : host_program_bytes});
    for (const MemoryItem& item : plan.host.items) plan.host.peak += item.bytes;
    plan.host.limit = memory_;

    PlacePlan& computes = cuda ? plan.gpu : plan.host;
    computes.reads = size.reads(config_.tied_embeddings);
    if (index == "exact") {
      plan.host.reads += keys_bytes(rows, tokens);
    } else if (of_index.gpu > 0) {
      plan.gpu.reads += of_index.gpu;
    } else {
      plan.host.reads += of_index.host;
    }
    return plan;
  }

  /// Of the layers that search.
  std::int64_t keys_bytes(KvDType rows, std::int64_t tokens) const {
    const AttentionShape& shape = config_.attention;
    std::int64_t heads = 0;
    for (std::int64_t l = 0; l < shape.layers; ++l)
      heads += shape.attends_all(l) ? shape.kv_heads : 0;
    return heads * tokens * vector_bytes(rows.keys, shape.head_dim);
  }

  const PlanRequest& request_;
  ModelConfig config_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::shared_ptr<const DeviceSizes> device_;
  std::int64_t memory_;
  DraftBytes drafts_;  // zeros: there is no draft model
};

}  // namespace

std::int64_t MemoryPlan::missing() const {
  return std::max<std::int64_t>(0, gpu.peak - gpu.limit) +
         std::max<std::int64_t>(0, host.peak - host.limit);
}

std::string MemoryPlan::flags() const {
  return fmt::format("--weights {} --kv-dtype {} --kv-index {}{}", name_of(weights), rows.name(),
                     index, host_search ? " --kv-host-search" : "");
}

std::vector<MemoryPlan> memory_plans(const std::filesystem::path& model,
                                     const PlanRequest& request) {
  if (request.tokens < 1)
    throw InvalidArgument(fmt::format("a plan for {} tokens; expected 1 or more", request.tokens));
  constexpr std::int64_t most_tokens = std::int64_t{1} << 36;  // so that products fit
  if (request.tokens > most_tokens) {
    throw InvalidArgument(
        fmt::format("a plan for {} tokens; expected {} at most", request.tokens, most_tokens));
  }
  for (const auto& [what, bytes] :
       {std::pair("GPU", request.gpu_memory), {"host", request.memory}}) {
    if (bytes < 0)
      throw InvalidArgument(
          fmt::format("a plan for {} bytes of {} memory; expected 0 or more", bytes, what));
  }
  return Planner(model, request).plans();
}

const MemoryPlan* best_fitting_plan(const std::vector<MemoryPlan>& plans) {
  const auto found = std::ranges::find_if(plans, &MemoryPlan::fits);
  return found == plans.end() ? nullptr : &*found;
}

const MemoryPlan* next_better_plan(const std::vector<MemoryPlan>& plans, const MemoryPlan* chosen) {
  const MemoryPlan* best = nullptr;
  for (const MemoryPlan& plan : plans) {
    if (&plan == chosen) break;
    if (best == nullptr || plan.missing() < best->missing()) best = &plan;
  }
  return best;
}

}  // namespace topkv
