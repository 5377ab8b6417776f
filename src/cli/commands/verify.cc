// `topkv verify`: a context's file, checked to the last byte.

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "src/cli/commands.h"
#include "src/cli/commands/device_report.h"
#include "src/cli/commands/load_context.h"
#include "src/cli/flags/bind.h"
#include "src/cli/flags/options.h"
#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/progress_bar.h"
#include "src/core/io/open_file.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/text/printable.h"
#include "src/core/threads/stopwatch.h"
#include "topkv/context_file.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

struct VerifyFlags {
  ModelFlags model;  // its threads
  std::string file;
  bool quiet = false;
  bool json = false;
};

/// found: "whole" and what else is known of the file.
void print_json(const VerifyFlags& flags, const Json& found, const Stopwatch& watch) {
  Json json;
  json["file"] = printable(flags.file);
  json.update(found);
  json["seconds"] = watch.seconds();
  json["version"] = version();
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

int run_verify(const VerifyFlags& flags) {
  catch_interrupts();
  const ThreadLimit threads(flags.model);
  ProgressBar progress = stderr_progress();
  if (flags.quiet) progress.hush();
  const Stopwatch watch;
  ContextFileInfo info;
  bool readable = false;
  try {
    const ReadableFile file(flags.file);
    readable = true;
    verify_context(flags.file, progress.callback("verify"));
    info = context_file_info(flags.file);
  } catch (const Error& error) {
    progress.finish();
    // What cannot be opened, another version wrote, or no memory could be had for, may well be
    // whole.
    const bool damaged = readable && dynamic_cast<const FileError*>(&error) != nullptr;
    if (flags.json)
      print_json(
          flags,
          {{"whole", damaged ? Json(false) : Json(nullptr)}, {"problem", printable(error.what())}},
          watch);
    throw;
  }
  progress.finish();
  if (!info.unknown_indices.empty())
    print_warning(unknown_indices_text(flags.file, info) +
                  ": their checksums match, and their contents are not checked");
  if (flags.json) {
    print_json(flags,
               {{"whole", true},
                {"tokens", info.tokens},
                {"file_bytes", info.file_bytes},
                {"unknown_indices", info.unknown_indices}},
               watch);
    return 0;
  }
  if (flags.quiet) return 0;
  fmt::print("{}: undamaged, {} tokens, {} read in {}\n", printable(flags.file),
             format_grouped(info.tokens), byte_text(info.file_bytes),
             format_seconds(watch.seconds()));
  return 0;
}

}  // namespace

Run add_verify(CLI::App& app) {
  const auto flags = std::make_shared<VerifyFlags>();
  FlagBinder bind(*add_command(app, "verify"));
  bind.operand(flags->file);
  bind("--threads", flags->model.threads);
  bind("--quiet", flags->quiet);
  bind("--json", flags->json);
  return [flags] { return run_verify(*flags); };
}

}  // namespace topkv::cli
