// A conversation about a long text: seconds until a turn's first token, beside reading all of the
// text again. A hybrid's states are kept at the end of each turn, so a turn reads what is new.
//
//   turns_bench [the flags of rates_bench] [--question TOKENS] [--turns MODE]
//     [model directory [tokens…]]
//
// Each turn has a question of 64 tokens, or --question, and an answer of 32. --turns: how questions
// of many tokens are read (RetrievalOptions::turns). Chat templates leave the last tokens
// of an answer out of the next prompt (a thought, an end mark): the third turn takes eight back.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "bench/model_flags.h"
#include "topkv/context_file.h"
#include "topkv/error.h"
#include "topkv/model.h"

namespace {

constexpr std::int64_t answer = 32;
constexpr std::int64_t taken_back = 8;

/// Files of a folder that is gone at the end.
struct Folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               fmt::format("topkv-turns-{}", static_cast<const void*>(this));
  Folder() { std::filesystem::create_directories(path); }
  ~Folder() { std::filesystem::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

void row(const std::string& what, std::int64_t read, double seconds) {
  fmt::print("  {:<58} {:>9} {:>10.3f}\n", what, read, seconds);
  std::fflush(stdout);
}

/// Seconds until the first token of the answer to a prompt of so many tokens, which stays in the
/// session with the rest of the answer.
double first_token(const topkv::Model& model, topkv::Session& session, std::int64_t prompt) {
  const auto tokens = bench::any_tokens(prompt, model.config().vocab_size);
  topkv::GenerateResult result;
  const double seconds =
      bench::seconds_of([&] { result = model.generate(session, tokens, {.max_tokens = 1}); });
  model.generate(session, result.tokens, {.max_tokens = answer - 1});
  return seconds;
}

}  // namespace

int main(int argc, char** argv) try {
  const bench::ModelFlags flags = bench::model_flags(argc, argv, {98304});
  const topkv::Device device = topkv::Device::open(flags.device, flags.gpu_memory);
  const topkv::Model model = topkv::Model::load(flags.directory, device, {}, flags.load);
  const topkv::RetrievalOptions options = {.index = flags.index, .turns = flags.turns, .capacity = 65536};
  const std::int64_t question = flags.question;
  for (const std::int64_t length : flags.lengths) {
    fmt::print("{} on {}, a text of {} tokens, index {}, rows {}\n  {:<58} {:>9} {:>10}\n",
               flags.directory, device.name(), length, flags.index, flags.prefill.kv_dtype.name(),
               "until the first token", "tokens read", "seconds");
    const auto text = bench::any_tokens(length, model.config().vocab_size);
    std::shared_ptr<const topkv::Context> context;
    std::optional<topkv::Session> session;
    double first = 0;
    const double reading = bench::seconds_of([&] {
      context = model.prefill(text, flags.prefill)->ready_for(options, {}, device);
      session.emplace(context, options, device);
    });
    first = first_token(model, *session, question);
    row("first turn, with the text", length + question, reading + first);
    row("second turn", question, first_token(model, *session, question));
    const std::int64_t kept = session->own_tokens() - taken_back;
    const std::int64_t reached = session->reachable(kept);
    const double going_back = bench::seconds_of([&] { session->truncate(reached); });
    row("third turn, the last eight tokens taken back", kept - reached + question,
        going_back + first_token(model, *session, kept - reached + question));

    const Folder folder;
    const auto in_folder = [&](const char* name) { return (folder.path / name).string(); };
    topkv::save_context(*context, in_folder("text.tkv"));
    topkv::save_context(*session->own_rows(), in_folder("turns.tkv"));
    for (const bool mapped : {false, true}) {
      session.reset();
      context.reset();
      const double loading = bench::seconds_of([&] {
        context = topkv::load_context(in_folder("text.tkv"), {.mapped = mapped, .device = device})
                      .context;
        context = context->ready_for(options, {}, device);
        session.emplace(context, options, device);
        session->resume(*topkv::load_context(in_folder("turns.tkv")).context);
      });
      const double next = first_token(model, *session, question);
      row(fmt::format("fourth turn, {} ({:.3f} s of it)",
                      mapped ? "rows left in a file" : "rows read from a file", loading),
          question, loading + next);
    }
  }
} catch (const topkv::Error& error) {
  fmt::print(stderr, "turns_bench: {}\n", error.what());
  return 1;
}
