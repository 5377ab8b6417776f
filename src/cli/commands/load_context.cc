#include "src/cli/commands/load_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "src/cli/commands/device_report.h"
#include "src/cli/terminal/text_layout.h"
#include "src/core/text/byte_text.h"
#include "src/core/text/format_numbers.h"
#include "src/core/text/printable.h"
#include "src/core/threads/stopwatch.h"
#include "topkv/error.h"
#include "topkv/index_spec.h"

namespace topkv::cli {
void check_model_of(const std::string& file, const std::string& fingerprint,
                    const std::string& made_with, const std::string& own, const ModelFlags& model) {
  if (own == fingerprint) return;
  throw FileError(fmt::format(
      "{}: does not match this model and its flags: it was made with {}, found {} with --weights "
      "{}; give the model and the flags (--weights, --length) that it was made with (fingerprints: "
      "{} in the file, {} here)",
      printable(file), made_with.empty() ? "a model that the file does not name" : made_with,
      model_name(model), model.weights, fingerprint, own));
}

void name_index_of_file(RetrievalFlags& retrieval, const ContextFileInfo& info) {
  if (!retrieval.indices.empty()) return;
  std::string name = "exact";
  for (const std::string& spec : info.indices) {
    try {
      IndexSpec(spec).check_index();
    } catch (const InvalidArgument&) {
      continue;  // a tail alone
    }
    if (spec == "exact") continue;
    name = spec;
    break;
  }
  retrieval.indices = {name};
}

std::string unknown_indices_text(const std::string& file, const ContextFileInfo& info) {
  return fmt::format(
      "{}: has indices that this topkv does not know or that depend on an unknown index ({})",
      printable(file), listed(info.unknown_indices, 8));
}

void check_asked(const std::string& file, const ContextFileInfo& info,
                 const RetrievalFlags& retrieval) {
  if (info.tokens_before >= 0) {
    throw FileError(fmt::format(
        "{}: has a session's own rows, which came after {} tokens of a context; expected the rows "
        "of a text, as topkv prefill writes them (Session::resume takes a session's rows)",
        printable(file), format_grouped(info.tokens_before)));
  }
  const IndexSpec index(retrieval.indices.front());
  if (!info.unknown_indices.empty())
    print_warning(
        fmt::format("{}; topkv searches with {}", unknown_indices_text(file, info), index.text()));
  if (!index.learns_queries() || info.has_queries ||
      std::ranges::count(info.indices, index.text()) > 0)
    return;
  throw FileError(fmt::format(
      "{}: has no queries of its prefill, which {} needs; name one of its indices ({}) or an index "
      "that needs no queries, or read the text again with topkv prefill --kv-index {}",
      printable(file), index.text(), listed(info.indices, 8), index.text()));
}

void check_ids(const std::string& file, const std::vector<Token>& tokens, std::int64_t vocabulary) {
  const auto bad = std::ranges::find_if(tokens, [&](Token token) { return token >= vocabulary; });
  if (bad == tokens.end()) return;
  throw FileError(fmt::format(
      "{}: token ids: token {} has the id {}; expected ids below {}, the model's vocabulary",
      printable(file), bad - tokens.begin(), *bad, vocabulary));
}

LoadedContext load_asked(const AskedFile& file, const ContextFileInfo& info,
                         const ModelFlags& model, const RetrievalFlags& retrieval,
                         const std::string& own, const Device& device, ProgressBar& progress) {
  check_model_of(file.file, info.model, info.made_with, own, model);
  check_indices(device, info.shape, retrieval, info.tokens);
  const Stopwatch watch;
  const RetrievalOptions options =
      retrieval_options(retrieval, info.shape.layers, retrieval.indices.front(), 1);
  std::vector<std::string> wanted = {options.index};
  if (!options.tail.empty() && options.tail != "none") wanted.push_back(options.tail);
  LoadedContext loaded = load_context(file.file, {.mapped = file.mapped,
                                                  .memory_budget = file.memory,
                                                  .indices = wanted,
                                                  .device = device,
                                                  .progress = progress.callback("load")});
  progress.finish();
  // Another file may have taken the name since.
  check_model_of(file.file, loaded.origin.model, loaded.origin.made_with, own, model);
  if (loaded.origin.end.chat != info.end.chat || loaded.context->tokens() != info.tokens)
    throw FileError(printable(file.file) + ": was replaced while the model was loaded; ask again");
  if (!file.quiet) {
    fmt::print(stderr, "context    {} tokens, {} {} in {}\n", format_grouped(info.tokens),
               byte_text(info.file_bytes), file.mapped ? "mapped" : "read",
               format_seconds(watch.seconds()));
  }
  loaded.context = loaded.context->ready_for(options, progress.index_callback("index"), device);
  progress.finish();
  return loaded;
}

}  // namespace topkv::cli
