#include "src/cli/flags/retrieval_grid.h"

#include <CLI/CLI.hpp>

namespace topkv::cli {

void add_flags(CLI::App& command, ChoiceFlags& flags) {
  add_flags(command, flags.retrieval);
  // Here several of these may be given.
  for (const char* one : {"--kv-topk", "--kv-tail", "--kv-mass", "--kv-error"}) {
    command.remove_option(command.get_option(one));
  }
  command.add_option("--kv-topk", flags.ks, "rows per layer such as 64")->expected(1)->take_all();
  command.add_option("--kv-tail", flags.tails, "none, mean, or an index with codes of values")
      ->expected(1)
      ->take_all();
  command.add_option("--kv-mass", flags.masses, "a share such as 0.95, or none")
      ->expected(1)
      ->take_all();
  command.add_option("--kv-error", flags.errors, "a relative error such as 0.1, or none")
      ->expected(1)
      ->take_all();
}

std::vector<RetrievalFlags> choices(ChoiceFlags& flags, const ModelFlags& model,
                                    const ModelConfig& config) {
  name_index(flags.retrieval, config.attention);
  std::vector<RetrievalFlags> all;
  for (const std::string& index : flags.retrieval.indices) {
    for (const std::string& tail : flags.tails) {
      for (const std::string& k : flags.ks) {
        for (const std::string& mass : flags.masses) {
          for (const std::string& error : flags.errors) {
            RetrievalFlags one = flags.retrieval;
            one.indices = {index};
            one.tail = tail;
            one.k = k;
            one.mass = mass;
            one.error = error;
            check_flags(one);
            check_model(model, one);
            all.push_back(one);
          }
        }
      }
    }
  }
  return all;
}

std::shared_ptr<const Context> with_choice(const std::shared_ptr<const Context>& context,
                                           const RetrievalFlags& choice, const Model& model,
                                           ProgressBar& progress) {
  check_indices(choice, model.config(), context->tokens());
  const std::string& index = choice.indices.front();
  return context->ready_for(retrieval_options(choice, model.config().attention.layers, index, 1),
                            progress.index_callback(index), model.device());
}

}  // namespace topkv::cli
