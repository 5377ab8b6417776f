// Generation from beginning to end, for one session or several: all prompts are read, then answers
// grow together until the last has ended.
#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "src/core/text/printable.h"
#include "src/model/generate/decode_loop.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Gives the results in the order of the adds. Throws what the first that fails fails of.
std::vector<GenerateResult> run_to_end(DecodeLoop& generation) {
  std::vector<GenerateResult> results(generation.members().size());
  const auto collect = [&] {
    std::vector<GenerationBatch::Finished> finished;
    finished.reserve(generation.members().size());
    generation.finished(finished);
    for (GenerationBatch::Finished& one : finished) {
      if (one.error) std::rethrow_exception(one.error);
      results[static_cast<std::size_t>(one.id)] = std::move(one.result);
    }
  };
  while (generation.reading() > 0) {
    generation.read_in_order();
    collect();
  }
  while (true) {
    generation.tell();
    collect();
    if (generation.members().empty()) break;
    generation.feed();
    collect();
  }
  results[0].times = generation.times();
  return results;
}

}  // namespace

std::string_view name_of(Finish finish) {
  switch (finish) {
    case Finish::end_token:
      return "end_token";
    case Finish::stop_text:
      return "stop_text";
    case Finish::length:
      return "length";
    case Finish::caller:
      return "caller";
  }
  return {};
}

std::string_view name_of(Draft draft) {
  switch (draft) {
    case Draft::automatic:
      return "auto";
    case Draft::none:
      return "none";
    case Draft::lookup:
      return "lookup";
  }
  return {};
}

Draft parse_draft(std::string_view name) {
  for (const Draft draft : {Draft::automatic, Draft::none, Draft::lookup})
    if (name == name_of(draft)) return draft;
  throw InvalidArgument(fmt::format("unknown draft \"{}\"; expected auto, none or lookup",
                                    printable_beginning(name)));
}

GenerateResult Model::generate(Session& session, std::span<const Token> prompt,
                               const GenerateOptions& options, const TokenFn& on_token,
                               const TextFn& on_text) const {
  DecodeLoop generation(*impl_);
  generation.add(session, prompt, options, on_token, on_text);
  return std::move(run_to_end(generation)[0]);
}

std::vector<GenerateResult> Model::generate_together(std::span<Session* const> sessions,
                                                     std::span<const std::vector<Token>> prompts,
                                                     const GenerateOptions& options,
                                                     const TokenOfFn& on_token,
                                                     const TextOfFn& on_text) const {
  constexpr std::int64_t most = GenerationBatch::most_sessions;
  if (sessions.size() != prompts.size() || sessions.empty() || std::ssize(sessions) > most) {
    throw InvalidArgument(
        fmt::format("generate_together: {} sessions and {} prompts; expected a prompt for each "
                    "session, and 1 to {} of them",
                    sessions.size(), prompts.size(), most));
  }
  Session::check_together(sessions);
  // A failure of one is that of all, also of those that have left by then.
  std::vector<std::unique_ptr<SessionRollback>> undo;
  for (Session* const session : sessions)
    undo.push_back(std::make_unique<SessionRollback>(*session));
  std::int64_t asked = 0;
  for (const std::vector<Token>& prompt : prompts) asked += std::ssize(prompt);
  DecodeLoop generation(*impl_);
  std::int64_t before = 0;  // tokens of prompts that are read before one
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    GenerateOptions of_one = options;
    if (options.progress) {
      of_one.progress = [&options, before, asked](const Progress& one) {
        options.progress({one.stage, one.unit, before + one.done, asked});
      };
    }
    TokenFn tell;
    if (on_token) tell = [&on_token, i](Token token) { return on_token(i, token); };
    TextFn say;
    if (on_text) say = [&on_text, i](std::string_view piece) { return on_text(i, piece); };
    generation.add(*sessions[i], prompts[i], of_one, std::move(tell), std::move(say));
    before += std::ssize(prompts[i]);
  }
  std::vector<GenerateResult> results = run_to_end(generation);
  for (const auto& one : undo) one->keep();
  return results;
}

}  // namespace topkv
