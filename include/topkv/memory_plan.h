// Memory plans: ways of holding a model and a context in the memory of a GPU and a host. Plans are
// ordered by exactness and say whether they fit. They need no loaded weights, no context and no
// GPU:
//
//     auto plans = topkv::memory_plans("models/qwen", {.tokens = 1 << 20, .gpu_memory = 16LL <<
//     30}); if (const topkv::MemoryPlan* plan = topkv::best_fitting_plan(plans))
//     use(plan->flags());
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/draft_model.h"
#include "topkv/model.h"
#include "topkv/types.h"

namespace topkv {

/// A request for plans: the model's use and the memory that there is. Sizes are in bytes.
struct PlanRequest {
  /// Tokens of the context and of a session's own together; at least 1.
  std::int64_t tokens = 0;
  /// Memory of a GPU that topkv may take, with its CUDA context. The machine need not have a GPU.
  /// 0: there is no GPU, and the host computes.
  std::int64_t gpu_memory = 0;
  /// Memory of the host for everything that the plan takes there. 0: the memory that is available
  /// now.
  std::int64_t memory = 0;
  /// How the context is prefilled. Prefill::automatic: each plan decides by its memory.
  PrefillAttention prefill = {};
  /// How weights are held. Not set: the plans try every way.
  std::optional<WeightFormat> weights = {};
  /// How rows are stored. Not set: the plans try bf16, q8, q8/q4 and q4.
  std::optional<KvDType> rows = {};
  /// The spec of the index: "exact" or codes. Not set: the plans try the default codes, and codes
  /// of half the bytes a key.
  std::optional<std::string> index = {};
  bool host_search = false;  ///< RetrievalOptions::host_search: codes take no memory of the GPU
  /// How the session reads turns (RetrievalOptions::turns).
  std::optional<PrefillAttention> turns = {};
  /// The model that drafts (DraftModel), on the same device. Empty: there is none.
  std::filesystem::path draft_model = {};
  DraftModelOptions drafts = {};
};

/// The part of a plan that one place has to hold, the GPU or the host. Sizes are in bytes.
struct PlacePlan {
  std::vector<MemoryItem> items;  ///< parts that are held, though not all at one time
  std::int64_t peak = 0;          ///< the most that is held at one time
  std::int64_t limit = 0;         ///< the memory that there is
  /// Bytes that each token reads of this memory. Divided by the memory's bandwidth, they are the
  /// least time that a token takes. They consist of:
  /// - weights: of an embedding that is not the output layer, one row; of experts, those that a
  ///   token goes through;
  /// - codes, or keys with the index "exact".
  std::int64_t reads = 0;
  /// Returns whether the peak is within the limit.
  bool fits() const { return peak <= limit; }
};

/// One way of holding a model and a context.
struct MemoryPlan {
  WeightFormat weights = WeightFormat::stored;
  KvDType rows = {};
  std::string index;
  bool host_search = false;
  /// How the context is prefilled: as was asked, or what Prefill::automatic stands for.
  PrefillAttention prefill = {};
  PlacePlan gpu;  ///< without items when the host computes
  PlacePlan host;
  /// The order of plans: the sum of what each part costs in exactness. Costs are the KL of the next
  /// token's distribution from the unrounded model's, measured with a small model
  /// (docs/explanation/planning.md).
  double loss = 0;

  /// Returns whether both places fit.
  bool fits() const { return gpu.fits() && host.fits(); }
  /// Returns the bytes that the GPU and the host lack together.
  std::int64_t missing() const;
  /// Returns the command's flags for this plan, such as "--weights int8 --kv-dtype q8 --kv-index
  /// codes:k=16,v=8".
  std::string flags() const;
};

/// Returns every way of holding a model and a context, the least loss first. When losses are equal,
/// the plan that takes more memory comes first.
///
/// Reads the model's configuration and the headers of its weights. A model without weights yet is
/// planned by its configuration.
///
/// GPU memory is what topkv allocates there, with two estimates: CUDA's own part is a guess, and
/// codes count as the largest GPUs would hold them.
///
/// Throws FileError and Unsupported as Model::load does for what it reads, of the draft model, too.
/// Further:
/// - InvalidArgument for tokens below 1 or above 2^36, for sizes below 0, for a draft model's
/// window
///   out of range, and for an index whose memory is unknown before it is built;
/// - Unsupported when no way is left;
/// - Unsupported for a GPU when topkv was built without CUDA.
std::vector<MemoryPlan> memory_plans(const std::filesystem::path& model,
                                     const PlanRequest& request);

/// Returns the first of the plans that fits: the one with the least loss. Null: no plan fits. The
/// pointer is into `plans`.
const MemoryPlan* best_fitting_plan(const std::vector<MemoryPlan>& plans);
/// Returns, among the plans before `chosen`, the plan that lacks the least memory. A null `chosen`
/// means all plans. Null: there is no such plan. Both pointers are into `plans`.
const MemoryPlan* next_better_plan(const std::vector<MemoryPlan>& plans, const MemoryPlan* chosen);

/// The name that best_fitting_plan() had in version 0.1.0.
[[deprecated("use best_fitting_plan")]] inline const MemoryPlan* most_exact(
    const std::vector<MemoryPlan>& plans) {
  return best_fitting_plan(plans);
}
/// The name that next_better_plan() had in version 0.1.0.
[[deprecated("use next_better_plan")]] inline const MemoryPlan* one_step_up(
    const std::vector<MemoryPlan>& plans, const MemoryPlan* chosen) {
  return next_better_plan(plans, chosen);
}

}  // namespace topkv
