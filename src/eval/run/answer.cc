#include "src/eval/run/answer.h"

#include "src/core/threads/stopwatch.h"

namespace topkv {

Answer ask(const Model& model, Session& session, std::span<const Token> question,
           const AskOptions& options) {
  const Tokenizer& tokenizer = model.tokenizer();
  const Stopwatch watch;
  double stepped = 0;
  if (options.steps) {
    for (; question.size() > 1; question = question.subspan(1)) {
      model.logits(session, question.first(1));
    }
    stepped = watch.seconds();
  }
  Answer answer;
  bool started = false;
  const auto on_token = [&](Token token) {
    if (answer.before_decoding.empty()) answer.before_decoding = session.step_times();
    if (options.on_token && !options.on_token(token)) return false;
    if (options.one_line) {
      for (const char c : tokenizer.bytes_of_token(token)) {
        if (c == '\n' && started) return false;
        started = started || (c != ' ' && c != '\n');
      }
    }
    return true;
  };
  GenerateOptions generate = options.generate;
  generate.draft = Draft::none;  // what is measured are steps of one token
  answer.result = model.generate(session, question, generate, on_token);
  answer.result.prompt_seconds += stepped;
  answer.text = tokenizer.decode(answer.result.tokens);
  answer.rows_per_head = session.stats().rows_per_head(session.context().shape().q_heads);
  return answer;
}

}  // namespace topkv
