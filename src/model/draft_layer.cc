#include "src/model/draft_layer.h"

#include <algorithm>

#include "src/model/draft_sizes.h"
#include "src/model/model_impl.h"
#include "src/model/weights/draft_layer_config.h"
#include "src/store/row_store.h"

namespace topkv {
namespace {

// Not rounded: they are few, and a draft is worth what it is near the model.
const KvDType draft_rows = DType::f32;

}  // namespace

DraftLayer::DraftLayer(const Checkpoint& from, const ModelConfig& model, const Weights& of_model,
                       const Device& on, WeightFormat format)
    : device(on),
      config(draft_layer_config(model)),
      weights(Weights::load_draft_layer(from, model, of_model, *on.compute(), format)),
      window(window_of(config)),
      nothing(ContextBuilder(config.attention, {.capacity = 1, .dtype = draft_rows}, on).freeze()),
      forwards(config, weights, on.compute(), session_chunk) {}

std::int64_t DraftLayer::window_of(const ModelConfig& config) {
  return std::min(most_window, config.reach());
}

std::int64_t DraftLayer::session_bytes_of(const ModelConfig& config) {
  const std::int64_t states = window_of(config) * config.hidden_size * bytes_of(DType::f32);
  return states + draft_retrieval(window_of(config)).capacity *
                      RowStore::bytes_per_token(config.attention, draft_rows);
}

}  // namespace topkv
