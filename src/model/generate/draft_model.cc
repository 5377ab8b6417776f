#include "topkv/draft_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "src/core/memory/memory.h"
#include "src/core/text/printable.h"
#include "src/model/draft_sizes.h"
#include "src/model/generate/draft_reader.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Throws InvalidArgument unless both models have the same tokens.
void check_vocabulary(const Model::Impl& draft, const Model::Impl& of) {
  const auto refuse = [&](const std::string& found) {
    throw InvalidArgument(fmt::format(
        "the draft model {} cannot draft for {}: {}; expected the same vocabulary: "
        "give a smaller model of the same family and generation",
        printable(path_text(draft.directory)), printable(path_text(of.directory)), found));
  };
  if (draft.tokenizer.has_value() != of.tokenizer.has_value()) {
    refuse(fmt::format("{} has no tokenizer, whose tokens could be compared",
                       draft.tokenizer ? "the model" : "the draft model"));
  }
  if (!draft.tokenizer) {
    const std::int64_t its = draft.config.vocab_size;
    if (its != of.config.vocab_size)
      refuse(fmt::format("it has {} tokens, the model {}", its, of.config.vocab_size));
    return;
  }
  const Tokenizer& its = *draft.tokenizer;
  const Tokenizer& own = *of.tokenizer;
  if (its.vocab_size() != own.vocab_size()) {
    refuse(fmt::format("its tokenizer has {} tokens, the model's {}", its.vocab_size(),
                       own.vocab_size()));
  }
  for (Token token = 0; token < own.vocab_size(); ++token) {
    const std::string here = its.content_of_token(token);
    const std::string there = own.content_of_token(token);
    if (here == there) continue;
    refuse(fmt::format("token {} is \"{}\" in its tokenizer and \"{}\" in the model's", token,
                       printable_beginning(here), printable_beginning(there)));
  }
}

/// Bytes of weights that a token reads.
double bytes_read(const Model::Impl& model) {
  const auto checkpoint = Checkpoint::open(model.directory);
  const WeightsSize size =
      Weights::size(*checkpoint, model.config, *model.device.compute(), model.format);
  return static_cast<double>(size.reads(model.config.tied_embeddings));
}

}  // namespace

DraftModel::DraftModel(std::shared_ptr<const Model> model, const Model& of,
                       const DraftModelOptions& options) {
  if (!model) throw InvalidArgument("the draft model is null; give a model that is loaded");
  const Model::Impl& network = *model->impl_;
  check_vocabulary(network, *of.impl_);
  auto impl = std::make_unique<Impl>();
  impl->window = draft_window(network.config, options);
  impl->session_bytes = draft_session_bytes(network.config, options);
  const std::int64_t available = available_host_memory();
  if (impl->session_bytes > available) {
    throw OutOfMemory("host memory for the rows of a draft model", impl->session_bytes, available,
                      "give it a smaller window, or a smaller model");
  }
  impl->network = &network;
  impl->of = of.impl_.get();
  if (network.tokenizer) impl->beginning = network.tokenizer->beginning_tokens();
  impl->nothing = ContextBuilder(network.config.attention, {.capacity = 1, .dtype = options.rows},
                                 network.device)
                      .freeze();
  if (network.device.is_cuda())
    impl->cost = std::clamp(bytes_read(network) / bytes_read(*of.impl_), 0.05, 1.0);
  impl->model = std::move(model);
  impl_ = std::move(impl);
}

DraftModel::~DraftModel() = default;

const Model& DraftModel::model() const { return *impl_->model; }
std::int64_t DraftModel::window() const { return impl_->window; }
std::int64_t DraftModel::session_bytes() const { return impl_->session_bytes; }
const DraftModel::Impl& DraftModel::impl() const { return *impl_; }

}  // namespace topkv
