// The sub-commands. Each registers its flags on a CLI11 command and returns what runs it.
#pragma once

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace topkv::cli {

/// Exit statuses besides 0.
inline constexpr int exit_error = 1;
inline constexpr int exit_usage = 2;

/// Runs a parsed command and returns its exit status; throws UsageError, Error or Interrupted.
using Run = std::function<int()>;

Run add_needle(CLI::App& app);
Run add_generate(CLI::App& app);
Run add_chat(CLI::App& app);
Run add_prefill(CLI::App& app);
Run add_ask(CLI::App& app);
Run add_serve(CLI::App& app);
Run add_verify(CLI::App& app);
Run add_info(CLI::App& app);
Run add_plan(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_fidelity(CLI::App& app);
Run add_perplexity(CLI::App& app);
Run add_completion(CLI::App& app);
Run add_manual(CLI::App& app);

/// A command by its name, and what adds it.
struct Command {
  const char* name;
  Run (*add)(CLI::App& app);
};

/// In the order of the main help.
inline constexpr Command all_commands[] = {
    {"needle", add_needle},
    {"generate", add_generate},
    {"chat", add_chat},
    {"prefill", add_prefill},
    {"ask", add_ask},
    {"serve", add_serve},
    {"verify", add_verify},
    {"info", add_info},
    {"plan", add_plan},
    {"fidelity", add_fidelity},
    {"perplexity", add_perplexity},
    {"eval", add_eval},
    {"bench", add_bench},
    {"completion", add_completion},
    {"manual", add_manual},
};

/// Adds a command that src/cli/flags/help.h knows, whose --help prints what is said there.
CLI::App* add_command(CLI::App& app, const char* name);

}  // namespace topkv::cli
