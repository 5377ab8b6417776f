#include "src/cli/flags/retrieval_grid.h"

namespace topkv::cli {

std::vector<RetrievalFlags> grid_points(GridFlags& flags, const ModelFlags& model,
                                        const ModelConfig& config) {
  name_index(flags.retrieval, config.attention);
  if (flags.tails.empty()) flags.tails = {""};
  std::vector<RetrievalFlags> all;
  for (const std::string& index : flags.retrieval.indices) {
    for (const std::string& tail : flags.tails) {
      for (const std::string& k : flags.ks) {
        for (const std::optional<double> mass : flags.masses) {
          for (const std::optional<double> error : flags.errors) {
            for (const std::optional<std::string>& guarantee : flags.guarantees) {
              RetrievalFlags one = flags.retrieval;
              one.indices = {index};
              one.tail = tail;
              one.k = k;
              one.mass = mass;
              one.error = error;
              one.guarantee = guarantee;
              check_flags(one);
              check_model(model, one);
              all.push_back(one);
            }
          }
        }
      }
    }
  }
  return all;
}

std::shared_ptr<const Context> with_retrieval(const std::shared_ptr<const Context>& context,
                                              const RetrievalFlags& point, const Model& model,
                                              ProgressBar& progress) {
  check_indices(point, model.config(), context->tokens());
  const std::string& index = point.indices.front();
  return context->ready_for(retrieval_options(point, model.config().attention.layers, index, 1),
                            progress.index_callback(index), model.device());
}

}  // namespace topkv::cli
