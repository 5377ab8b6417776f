#include "src/cli/commands/load_model.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <mutex>

#include "src/cli/commands/device_report.h"
#include "src/core/io/files.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/printable.h"
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

/// The plan of a model, with what a draft model takes beside it. plan: is given these bytes.
template <class Plan>
DevicePlan with_draft_model(const DraftFlags& drafts, const Device& device, const Plan& plan) {
  if (drafts.model.empty()) return plan(0);
  const std::int64_t bytes =
      DraftModel::device_bytes(drafts.model, device, draft_model_options(drafts));
  DevicePlan with = plan(bytes);
  with.items.front().bytes -= bytes;
  with.items.insert(with.items.begin() + 1,
                    {"draft model: weights, activations, a session", bytes});
  return with;
}

/// Threads of a server warn at a time.
WarningFn warnings_to(ProgressBar& progress) {
  return [&progress, one_at_a_time = std::make_shared<std::mutex>()](const std::string& warning) {
    const std::lock_guard lock(*one_at_a_time);
    progress.note(warning_line(warning));
  };
}

}  // namespace

Model load_model(const ModelFlags& flags, const Device& device, const PrefillFlags& prefill,
                 const RetrievalFlags& retrieval, ProgressBar& progress, std::int64_t length,
                 const std::optional<PrefillAttention>& turns, const DraftFlags& drafts) {
  const WeightFormat weights = parse_weight_format(flags.weights);
  const AttentionShape shape = ModelConfig::load(flags.directory).attention;
  const PrefillOptions reading = prefill_options(prefill, retrieval);
  resolve_prefill(reading.attention, shape, length, device.is_cuda());  // refuses what cannot be
  if (retrieval.gpu_rows && !device.is_cuda()) {
    throw UsageError(
        "--kv-gpu-rows: the model runs on the CPU, where rows lie in host memory; leave the flag "
        "out, or give --device cuda");
  }
  if (device.is_cuda() && !drafts.model.empty() && drafts.mode == name_of(Draft::automatic)) {
    throw UsageError(
        "--draft-model: with --draft auto nothing is drafted on a CUDA device, where answers with "
        "drafts may differ by rounding; give --draft lookup, or leave --draft-model out");
  }
  if (device.is_cuda()) {
    RetrievalOptions sessions = retrieval_options(retrieval, shape.layers, "exact", 1);
    sessions.turns = turns;
    check_plan(flags.directory,
               with_draft_model(drafts, device,
                                [&](std::int64_t beside) {
                                  return Model::plan(flags.directory, device, reading, sessions,
                                                     weights, length, beside);
                                }),
               device);
  }
  LoadOptions options{.weights = weights, .length = length, .indexer = retrieval.indexer};
  if (weights != WeightFormat::stored) options.progress = progress.callback("weights");
  Model model = Model::load(flags.directory, device, warnings_to(progress), options);
  progress.finish();
  return model;
}

std::shared_ptr<const DraftModel> load_draft_model(const DraftFlags& flags, const Model& of,
                                                   ProgressBar& progress) {
  if (flags.model.empty()) return nullptr;
  const DraftModelOptions options = draft_model_options(flags);
  const auto model = std::make_shared<const Model>(
      Model::load(flags.model, of.device(), warnings_to(progress), {.length = options.window}));
  return std::make_shared<const DraftModel>(model, of, options);
}

std::shared_ptr<const Grammar> answer_grammar(const AnswerFlags& flags, const Model& model) {
  if (flags.json_schema.empty()) return nullptr;
  const std::string schema = read_file(flags.json_schema);
  try {
    return Grammar::json_schema(model, schema);
  } catch (const InvalidArgument& error) {
    throw FileError(fmt::format("{}: {}", printable(flags.json_schema), error.what()));
  }
}

}  // namespace topkv::cli
