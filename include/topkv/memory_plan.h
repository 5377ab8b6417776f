// What of a model and a context fits which memory, and the most exact way of fitting it: before
// anything is bought, loaded or read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"
#include "topkv/model.h"
#include "topkv/types.h"

namespace topkv {

/// Sizes in bytes.
struct PlanRequest {
  /// Of the context and a session's own together; at least 1.
  std::int64_t tokens = 0;
  /// Of a GPU, what topkv may take, its CUDA context included. There need be no GPU here.
  /// 0: none; the host computes.
  std::int64_t gpu_memory = 0;
  /// Of the host, all that this takes; 0: what is available now.
  std::int64_t memory = 0;
  PrefillAttention prefill = {};
  // What is settled; empty: the plan chooses.
  std::optional<WeightFormat> weights = {};
  std::optional<KvDType> rows = {};
  std::optional<std::string> index = {};  ///< "exact", or codes
  bool host_search = false;               ///< of RetrievalOptions: codes take none of the GPU
};

/// Of one place: what it has to hold.
struct PlacePlan {
  std::vector<MemoryItem> items;
  std::int64_t peak = 0;  ///< the most at a time
  std::int64_t limit = 0;
  /// Read of it for each token: weights (of an embedding that is not the output layer, a row; of
  /// experts those that a token goes through), and codes or, with "exact", keys. Over the memory's
  /// bandwidth: the least time that a token takes.
  std::int64_t reads = 0;
  bool fits() const { return peak <= limit; }
};

/// One way of holding a model and a context.
struct MemoryPlan {
  WeightFormat weights = WeightFormat::stored;
  KvDType rows = {};
  std::string index;
  bool host_search = false;
  PlacePlan gpu;  ///< no items: the host computes
  PlacePlan host;
  /// The sum of what each part took from a small model's distribution of the next token (KL; see
  /// docs/explanation/planning.md): what plans are ordered by.
  double loss = 0;

  bool fits() const { return gpu.fits() && host.fits(); }
  /// Bytes that GPU and host lack together.
  std::int64_t missing() const;
  /// "--weights int8 --kv-dtype q8 --kv-index codes:k=16,v=8"
  std::string flags() const;
};

/// Every way, those with the least loss first; of equal ones those that take more memory. Reads
/// the configuration and the headers of the weights. What a GPU takes is what topkv allocates, but
/// for CUDA itself, which is guessed, and codes, which are told for the largest of GPUs. Throws as
/// Model::load does for what it reads; InvalidArgument for sizes below 0 and indices whose memory
/// nobody knows before they are built; Unsupported where no way is left, and for a GPU when this
/// topkv was built without CUDA.
std::vector<MemoryPlan> memory_plans(const std::filesystem::path& model,
                                     const PlanRequest& request);

/// The first that fits; null: none does.
const MemoryPlan* most_exact(const std::vector<MemoryPlan>& plans);
/// Of those before `chosen` (all: when it is null), the one that lacks least; null: there is none.
const MemoryPlan* one_step_up(const std::vector<MemoryPlan>& plans, const MemoryPlan* chosen);

}  // namespace topkv
