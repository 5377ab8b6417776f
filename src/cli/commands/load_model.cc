#include "src/cli/commands/load_model.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "src/cli/commands/device_report.h"
#include "src/core/text/byte_text.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"

namespace topkv::cli {
namespace {

/// "take --weights int8 --kv-dtype q8 …, which fits with the default window and chunk; ": what the
/// planner would do within a GPU's ceiling; nothing where nothing fits.
std::string what_fits(const std::string& directory, std::int64_t tokens, std::int64_t ceiling) {
  const std::vector<MemoryPlan> plans =
      memory_plans(directory, {.tokens = tokens, .gpu_memory = ceiling});
  const MemoryPlan* plan = best_fitting_plan(plans);
  return plan == nullptr ? ""
                         : fmt::format("take {}, which fits with the default window and chunk; ",
                                       plan->flags());
}

void check_plan(const std::string& directory, const DevicePlan& plan, const Device& device) {
  std::fputs(plan_table(plan).c_str(), stderr);
  if (plan.fits()) return;
  throw OutOfMemory(
      fmt::format("memory of {} for this model and these flags", device.name()), plan.peak,
      plan.ceiling,
      fmt::format("{}raise --gpu-mem by {}, shrink what the table above shows as "
                  "largest (--weights, --kv-window, --chunk), or use --device cpu",
                  what_fits(directory, 1, plan.ceiling), byte_text(plan.peak - plan.ceiling)));
}

}  // namespace

Model load_model(const ModelFlags& flags, const Device& device, const PrefillFlags& prefill,
                 const RetrievalFlags& retrieval, ProgressBar& progress, std::int64_t length,
                 const std::optional<PrefillAttention>& turns) {
  const WeightFormat weights = parse_weight_format(flags.weights);
  const AttentionShape shape = ModelConfig::load(flags.directory).attention;
  const PrefillOptions reading = prefill_options(prefill, retrieval);
  resolve_prefill(reading.attention, shape, length, device.is_cuda());  // refuses what cannot be
  if (device.is_cuda()) {
    RetrievalOptions sessions = retrieval_options(retrieval, shape.layers, "exact", 1);
    sessions.turns = turns;
    check_plan(flags.directory,
               Model::plan(flags.directory, device, reading, sessions, weights, length), device);
  }
  LoadOptions options{.weights = weights, .length = length};
  if (weights != WeightFormat::stored) options.progress = progress.callback("weights");
  // Threads of a server warn at a time.
  const auto one_at_a_time = std::make_shared<std::mutex>();
  Model model = Model::load(
      flags.directory, device,
      [&progress, one_at_a_time](const std::string& warning) {
        const std::lock_guard lock(*one_at_a_time);
        progress.note(warning_line(warning));
      },
      options);
  progress.finish();
  return model;
}

}  // namespace topkv::cli
