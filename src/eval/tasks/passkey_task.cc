#include "src/eval/tasks/haystack.h"
#include "src/eval/tasks/needle_context.h"
#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/tasks.h"

namespace topkv {
namespace {

constexpr std::int64_t passkey_tokens = 16;

EvalSample make_sample(const SampleOrder& order, const TaskTokens& tokens) {
  const NeedleTask task(NeedleStyle::passkey, {});
  Random random(order.seed);
  const double depth = static_cast<double>(random.between(0, 1000)) / 10;
  const std::vector<Needle> needles = task.needles({depth}, mix_seed(order.seed, 1));
  EvalSample sample;
  sample.predict = passkey_tokens;
  sample.one_line = true;
  sample.question = needles.front().question;
  sample.references = {needles.front().value};
  const auto noise = make_haystack("noise", 0, {});
  const std::int64_t room = tokens.room(order.length, sample.question, sample.predict) +
                            static_cast<std::int64_t>(tokens.beginning.size());
  sample.context =
      build_needle_context(room, tokens.beginning, task.intro(), needles, *noise, tokens.encode)
          .tokens;
  return sample;
}

}  // namespace

EvalTask passkey_task(const TaskTokens& tokens, bool steps) {
  EvalTask task;
  task.name = steps ? "passkey_steps" : "passkey";
  task.seed_name = "passkey";
  task.haystack = "noise";
  task.steps = steps;
  task.make = [tokens](const SampleOrder& order) { return make_sample(order, tokens); };
  return task;
}

}  // namespace topkv
