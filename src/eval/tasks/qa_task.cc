#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "src/core/format/json_file.h"
#include "src/core/io/files.h"
#include "src/eval/tasks/tasks.h"
#include "topkv/error.h"

namespace topkv {
namespace {

constexpr std::int64_t answer_tokens = 32;    ///< RULER's for questions about documents
constexpr std::int64_t summary_tokens = 256;  ///< of an answer that nothing is compared with
constexpr std::int64_t most_tokens = 65536;

// RULER's template "qa" (scripts/data/synthetic/constants.py).
constexpr const char* instruction =
    "Answer the question based on the given documents. Only give me the answer and do not output "
    "any other words.\n\n";

struct AskedQuestion {
  std::string text;
  std::vector<std::string> answers;
  std::int64_t tokens = answer_tokens;
  std::string context;  ///< of a file of its own; empty: the files of all
};

/// Texts as contexts, each encoded once. One thread at a time.
class EncodedTexts {
 public:
  explicit EncodedTexts(TaskTokens tokens) : tokens_(std::move(tokens)) {}

  const std::vector<Token>& context(const std::string& text) {
    const auto [at, added] = encoded_.try_emplace(text);
    if (added) {
      at->second = tokens_.context(
          fmt::format("{}The following are given documents.\n\n{}\n\n", instruction, text));
    }
    return at->second;
  }
  const TaskTokens& tokens() const { return tokens_; }

 private:
  TaskTokens tokens_;
  std::map<std::string, std::vector<Token>> encoded_;
};

/// "Document 1:\n…", documents apart by an empty line.
std::string documents(const std::vector<std::string>& texts) {
  std::string text;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    text += fmt::format("{}Document {}:\n{}", i == 0 ? "" : "\n\n", i + 1, texts[i]);
  }
  return text;
}

std::vector<std::string> answers_of(const JsonObject& line) {
  std::vector<std::string> answers;
  const nlohmann::json* given = line.find("answers");
  if (given == nullptr) return answers;
  const auto usable = [](const nlohmann::json& answer) {
    return answer.is_string() && !answer.get_ref<const std::string&>().empty();
  };
  if (!given->is_array() || !std::ranges::all_of(*given, usable)) {
    line.fail("answers", "a list of texts that are not empty");
  }
  for (const nlohmann::json& answer : *given) answers.push_back(answer.get<std::string>());
  return answers;
}

AskedQuestion parse_question(const std::string& text, const std::filesystem::path& file,
                             std::int64_t number,
                             std::map<std::string, std::string>& context_files) {
  const std::string where = fmt::format("{}: line {}", file.string(), number);
  const nlohmann::json json = parse_json(text, where);
  const JsonObject line(json, where);
  AskedQuestion asked;
  asked.text = line.text("question");
  if (asked.text.empty()) line.fail("question", "a text that is not empty");
  asked.answers = answers_of(line);
  asked.tokens = line.integer("tokens", 1, most_tokens,
                              asked.answers.empty() ? summary_tokens : answer_tokens);
  if (line.contains("context_file")) {
    // Beside the questions, unless its path is absolute.
    const std::string name = (file.parent_path() / line.text("context_file")).string();
    const auto [at, added] = context_files.try_emplace(name);
    if (added) at->second = documents({read_file(name)});
    asked.context = at->second;
  }
  return asked;
}

std::vector<AskedQuestion> read_questions(const std::filesystem::path& file) {
  const std::string text = read_file(file);
  std::vector<AskedQuestion> questions;
  std::map<std::string, std::string> context_files;
  std::size_t begin = 0;
  for (std::int64_t number = 1; begin < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    questions.push_back(parse_question(line, file, number, context_files));
  }
  if (!questions.empty()) return questions;
  throw FileError(fmt::format(
      "{}: holds no question; expected lines such as {{\"question\": \"…\", \"answers\": [\"…\"]}}",
      file.string()));
}

EvalSample make_sample(const AskedQuestion& asked, const std::string& shared,
                       const SampleOrder& order, EncodedTexts& texts) {
  const TaskTokens& tokens = texts.tokens();
  EvalSample sample;
  sample.predict = asked.tokens;
  sample.one_line = !asked.answers.empty();
  sample.question = fmt::format("{}Question: {} Answer:", instruction, asked.text);
  sample.references = asked.answers;
  sample.context = texts.context(asked.context.empty() ? shared : asked.context);
  const std::int64_t room = tokens.room(order.length, sample.question, sample.predict) +
                            static_cast<std::int64_t>(tokens.beginning.size());
  if (std::ssize(sample.context) > room) {
    throw InvalidArgument(fmt::format(
        "the text of question {} takes {} tokens, and a length of {} leaves {} for it beside "
        "question and answer; use a longer length or less text, for it is not cut",
        order.number + 1, sample.context.size(), order.length, room));
  }
  return sample;
}

}  // namespace

EvalTask qa_task(const TaskTokens& tokens, const TaskSources& sources) {
  if (sources.questions.empty()) {
    throw InvalidArgument(
        "task qa needs questions; give --questions FILE with lines such as {\"question\": \"…\", "
        "\"answers\": [\"…\"]}");
  }
  const auto questions =
      std::make_shared<const std::vector<AskedQuestion>>(read_questions(sources.questions));
  std::vector<std::string> texts;
  for (const std::filesystem::path& file : sources.files) texts.push_back(read_file(file));
  const auto shared = std::make_shared<const std::string>(documents(texts));
  const auto without = std::ranges::find_if(
      *questions, [](const AskedQuestion& asked) { return asked.context.empty(); });
  if (texts.empty() && without != questions->end()) {
    throw InvalidArgument(fmt::format(
        "task qa needs a text: question {} of {} names no context_file and there is no --file",
        without - questions->begin() + 1, sources.questions.string()));
  }
  EvalTask task;
  task.name = task.seed_name = "qa";
  task.scoring = Scoring::any;
  task.f1 = true;
  task.haystack = "files";
  task.most = std::ssize(*questions);
  task.make = [questions, shared,
               encoded = std::make_shared<EncodedTexts>(tokens)](const SampleOrder& order) {
    return make_sample((*questions)[static_cast<std::size_t>(order.number)], *shared, order,
                       *encoded);
  };
  return task;
}

}  // namespace topkv
