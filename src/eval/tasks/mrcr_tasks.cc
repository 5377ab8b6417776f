// openai/mrcr, README.md: the wording of requests and of the question, the string of ten characters
// and the numbers of equal requests. Its replies are GPT-4o's; here they are generated sentences,
// so that nothing but the requests and their order tells replies apart.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "src/eval/tasks/fill_to_length.h"
#include "src/eval/tasks/needle_task.h"
#include "src/eval/tasks/random_draws.h"
#include "src/eval/tasks/tasks.h"

namespace topkv {
namespace {

constexpr std::int64_t mrcr_spare_tokens = 16;  ///< of an answer that is encoded in another way
constexpr std::int64_t least_sentences = 3;     ///< of a reply
constexpr std::int64_t most_sentences = 5;
constexpr std::int64_t topic_count = 8;  ///< of a conversation

constexpr std::array<std::string_view, 8> forms = {"poem",         "short essay", "blog post",
                                                   "news article", "riddle",      "short story",
                                                   "speech",       "letter"};
constexpr std::array<std::string_view, 24> topics = {
    "bicycles", "bridges",  "candles", "clocks",   "forests", "gardens", "harbours",  "islands",
    "kettles",  "lanterns", "maps",    "markets",  "mirrors", "owls",    "pianos",    "rivers",
    "rocks",    "sailors",  "spiders", "sparrows", "tapirs",  "towers",  "umbrellas", "volcanoes"};

constexpr const char* example =
    "Here is an example of a conversation that is followed by a question and its answer:\n\nUser: "
    "write a song about clouds\nAssistant: Grey ships that never land.\nUser: write a song about "
    "clouds\nAssistant: The rain is late again.\nUser: Prepend 7hQ2xLw9Ka to the 1st (1 indexed) "
    "song about clouds. Do not include any other text in your response.\nAssistant: "
    "7hQ2xLw9KaGrey ships that never land.\n\nHere is the conversation that I will ask about:\n\n";

/// "poem about tapirs".
using Kind = std::pair<std::string_view, std::string_view>;

struct Conversation {
  std::string text;
  std::vector<std::string> wanted;  ///< replies to the equal requests, in their order
};

/// What does not depend on the length of a conversation.
struct Plan {
  std::int64_t needles = 0;
  Kind needle;
  std::vector<std::string_view> topics;
  std::int64_t asked = 0;  ///< which of the equal requests, from 0
  std::string prefix;
};

std::string random_prefix(Random& random) {
  constexpr std::string_view characters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string prefix;
  while (prefix.size() < mrcr_prefix) {
    prefix += characters[static_cast<std::size_t>(random.between(0, std::ssize(characters) - 1))];
  }
  return prefix;
}

Plan make_plan(std::int64_t needles, std::uint64_t seed) {
  Random random(seed);
  Plan plan;
  plan.needles = needles;
  for (const std::int64_t topic : draw(random, std::ssize(topics), topic_count)) {
    plan.topics.push_back(topics[static_cast<std::size_t>(topic)]);
  }
  plan.needle = {random.pick(forms), random.pick(plan.topics)};
  plan.asked = random.between(0, needles - 1);
  plan.prefix = random_prefix(random);
  return plan;
}

/// Of so many sentences: the last reply has what is left of them, and is no reply to an equal
/// request when it is shorter than others.
Conversation conversation_of(const Plan& plan, std::int64_t sentences, Prose& prose,
                             std::uint64_t seed) {
  Random random(seed);
  std::vector<std::string> replies;
  std::vector<Kind> kinds;
  std::int64_t whole = 0;  ///< replies of their full length
  for (std::int64_t at = 0; at < sentences;) {
    const std::int64_t wanted = random.between(least_sentences, most_sentences);
    if (wanted <= sentences - at) ++whole;
    std::string reply;
    const std::int64_t end = std::min(at + wanted, sentences);
    for (; at < end; ++at) reply += (reply.empty() ? "" : " ") + prose.sentence(at);
    replies.push_back(std::move(reply));
    Kind kind = plan.needle;
    while (kind == plan.needle) kind = {random.pick(forms), random.pick(plan.topics)};
    kinds.push_back(kind);
  }
  Random places(mix_seed(seed, 1));
  Conversation conversation;
  std::vector<std::int64_t> equal = draw(places, whole, plan.needles);
  std::ranges::sort(equal);
  for (const std::int64_t at : equal) {
    kinds[static_cast<std::size_t>(at)] = plan.needle;
    conversation.wanted.push_back(replies[static_cast<std::size_t>(at)]);
  }
  conversation.text = example;
  for (std::size_t i = 0; i < replies.size(); ++i) {
    conversation.text += fmt::format("User: write a {} about {}\nAssistant: {}\n", kinds[i].first,
                                     kinds[i].second, replies[i]);
  }
  return conversation;
}

std::string ordinal(std::int64_t number) {
  return fmt::format("{}{}", number,
                     number == 1   ? "st"
                     : number == 2 ? "nd"
                     : number == 3 ? "rd"
                                   : "th");
}

EvalSample mrcr_sample(std::int64_t needles, const SampleOrder& order, const TaskTokens& tokens) {
  const Plan plan = make_plan(needles, order.seed);
  Prose prose("generated", mix_seed(order.seed, 1));
  const auto conversation = [&](std::int64_t sentences) {
    return conversation_of(plan, sentences, prose, mix_seed(order.seed, 2));
  };
  const auto answer = [&](const Conversation& of) {
    return plan.prefix + of.wanted[static_cast<std::size_t>(plan.asked)];
  };
  EvalSample sample;
  sample.one_line = true;
  sample.question = fmt::format(
      "User: Prepend {} to the {} (1 indexed) {} about {}. Do not include any other text in your "
      "response.\nAssistant:",
      plan.prefix, ordinal(plan.asked + 1), plan.needle.first, plan.needle.second);
  // Another length puts the equal requests before other replies: text and answer are counted
  // together.
  const std::int64_t sentences =
      most_units(tokens.room(order.length, sample.question, mrcr_spare_tokens),
                 most_sentences * needles, 1, [&](std::int64_t count) {
                   const Conversation made = conversation(count);
                   return tokens.count(made.text) + tokens.count(answer(made));
                 });
  const Conversation made = conversation(sentences);
  sample.references = {answer(made)};
  sample.predict = tokens.count(sample.references.front()) + mrcr_spare_tokens;
  sample.context = tokens.context(made.text);
  return sample;
}

}  // namespace

std::vector<EvalTask> mrcr_tasks(const TaskTokens& tokens) {
  std::vector<EvalTask> all;
  for (const std::int64_t needles : {2, 4, 8}) {
    EvalTask task;
    task.name = task.seed_name = fmt::format("mrcr_{}", needles);
    task.haystack = "conversation";
    task.scoring = Scoring::prefixed_sequence;
    task.make = [needles, tokens](const SampleOrder& order) {
      return mrcr_sample(needles, order, tokens);
    };
    all.push_back(std::move(task));
  }
  return all;
}

}  // namespace topkv
