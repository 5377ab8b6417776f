#include "src/cli/commands/device_report.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "src/core/text/byte_text.h"
#include "topkv/error.h"
#include "topkv/memory_plan.h"

namespace topkv::cli {

std::string plan_table(const DevicePlan& plan) {
  std::string text = fmt::format("GPU memory, ceiling {}\n", byte_text(plan.ceiling));
  for (const MemoryItem& item : plan.items) {
    text += fmt::format("  {:<44} {:>10}\n", item.what, byte_text(item.bytes));
  }
  return text + fmt::format("  {:<44} {:>10}\n", "at most at a time", byte_text(plan.peak));
}

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
                 const RetrievalFlags& retrieval, ProgressBar& progress, std::int64_t length) {
  const WeightFormat weights = parse_weight_format(flags.weights);
  if (device.is_cuda()) {
    const std::int64_t layers = ModelConfig::load(flags.directory).attention.layers;
    check_plan(flags.directory,
               Model::plan(flags.directory, device, prefill_options(prefill, retrieval),
                           retrieval_options(retrieval, layers, "exact", 1), weights),
               device);
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

void check_indices(const Device& device, const AttentionShape& shape,
                   const RetrievalFlags& retrieval, std::int64_t tokens) {
  if (!device.is_cuda() || tokens == 0) return;
  std::int64_t bytes = 0;
  for (const std::string& index : retrieval.indices) {
    bytes += device_index_bytes(shape, retrieval_options(retrieval, shape.layers, index, 1), tokens,
                                device);
  }
  const DeviceMemory memory = device.memory();
  if (bytes <= memory.ceiling - memory.used) return;
  throw OutOfMemory(
      fmt::format("GPU memory for the codes, or other key summaries, of {} tokens", tokens), bytes,
      memory.ceiling - memory.used,
      "raise --gpu-mem, use fewer tokens, search on the host (--kv-host-search), or use --kv-index "
      "exact, which has none; topkv plan shows what fits");
}

std::string warning_line(const std::string& warning) {
  return fmt::format("topkv: warning: {}", warning);
}

void print_warning(const std::string& warning) {
  fmt::print(stderr, "{}\n", warning_line(warning));
}

std::string memory_account(const Device& device) {
  if (!device.is_cuda()) return {};
  const DeviceMemory memory = device.memory();
  std::string text =
      fmt::format("{} at most, of {}", byte_text(memory.peak), byte_text(memory.ceiling));
  if (memory.driver > 0) {
    text += fmt::format("; the driver counts {} now, topkv {}", byte_text(memory.driver),
                        byte_text(memory.used));
  }
  return text;
}

}  // namespace topkv::cli
