#include "topkv/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/context/shape_difference.h"
#include "src/core/format/gguf_file.h"
#include "src/core/io/mapped_file.h"
#include "src/core/text/printable.h"
#include "src/model/config/turn_ends.h"
#include "src/model/model_impl.h"
#include "src/model/network/key_bias.h"
#include "src/model/weights/safetensors.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// What the tokenizer is in; nothing where there is none.
std::optional<std::filesystem::path> tokenizer_path(const std::filesystem::path& model) {
  if (is_model_file(model)) {
    const GgufFile file = GgufFile::open(model);
    const bool there = file.has("tokenizer.ggml.tokens");
    return there ? std::optional(model) : std::nullopt;
  }
  const std::filesystem::path path = model / "tokenizer.json";
  return file_exists(path) ? std::optional(path) : std::nullopt;
}

}  // namespace

Model::Impl::Impl(const std::filesystem::path& dir, const Device& on, WarningFn warning,
                  const LoadOptions& options)
    : directory(dir),
      device(on),
      config(ModelConfig::load(dir, options.length)),
      checkpoint(Checkpoint::open(dir)),
      format(options.weights),
      on_warning(std::move(warning)) {
  device.compute()->check_heads(config.attention);
  std::shared_ptr<const IndexerFile> indexer;
  if (!options.indexer.empty()) {
    if (device.is_cuda()) {
      throw Unsupported(fmt::format(
          "{}: a trained indexer on a CUDA device; trained indexers run on a CPU so far: give the "
          "device cpu, or leave the indexer out",
          path_text(options.indexer)));
    }
    indexer = std::make_shared<const IndexerFile>(options.indexer, config);
    config.attention.indexer = indexer->shape();
    config.attention.indexer_layer = indexer->indexer_layer();
    indexer_path = options.indexer;
  }
  for (const std::string& line : config.warnings) warn(line);
  if (const std::string line = Weights::settle_tie(*checkpoint, config); !line.empty()) warn(line);
  const auto path = tokenizer_path(dir);
  if (path) {
    tokenizer = Tokenizer::load(*path, on_warning);
    if (tokenizer->vocab_size() > config.vocab_size) {
      throw FileError(
          fmt::format("{}: the tokenizer has {} tokens, the model's vocabulary {}; they do not "
                      "belong together",
                      path_text(*path), tokenizer->vocab_size(), config.vocab_size));
    }
    for (const Token end : turn_ends(*tokenizer)) {
      if (std::ranges::find(config.eos, end) == config.eos.end()) config.eos.push_back(end);
    }
  }
  weights = Weights::load(*checkpoint, config, *device.compute(), options);
  weights.indexer = std::move(indexer);
  if (!device.is_cuda() && Weights::has_draft_layer(*checkpoint, config)) {
    draft_layer =
        std::make_shared<const DraftLayer>(*checkpoint, config, weights, device, options.weights);
  }
  key_bias = key_bias_of(*checkpoint, config);
  if (const std::string line = unread_warning(*checkpoint); !line.empty()) warn(line);
  if (!device.is_cuda()) return;
  checkpoint.reset();  // all is copied: the files' pages are not to count as this process's
  forwards.keep(forwards.borrow());
}

void Model::Impl::check_reach(std::int64_t tokens) const {
  if (tokens <= config.reach() || told_reach.exchange(true)) return;
  warn(config.beyond_reach(tokens));
}

void Model::Impl::check_tokens(std::span<const Token> tokens) const {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      throw InvalidArgument(fmt::format("token {} at {} is outside the vocabulary of {}", tokens[i],
                                        i, config.vocab_size));
    }
  }
}

void Model::Impl::check_session(const Session& session) const {
  const AttentionShape& own = config.attention;
  const AttentionShape& its = session.context().shape();
  const auto heads = [](const AttentionShape& of) {
    return fmt::format("{} layers of {} query and {} KV heads of {} dims", of.layers, of.q_heads,
                       of.kv_heads, of.head_dim);
  };
  if (heads(own) != heads(its)) {
    throw InvalidArgument(
        fmt::format("the session's context is of {}, the model of {}; give it a context that this "
                    "model's prefill made",
                    heads(its), heads(own)));
  }
  bool alike = own.softmax_scale() == its.softmax_scale() && own.softcap == its.softcap &&
               own.chunk_len == its.chunk_len && own.keys_are_values == its.keys_are_values;
  for (std::int64_t l = 0; l < own.layers; ++l)
    alike = alike && own.window_of(l) == its.window_of(l) &&
            own.row_layer_of(l) == its.row_layer_of(l) &&
            own.state_size_of(l) == its.state_size_of(l);
  if (!alike) {
    throw InvalidArgument(
        "the session's context has another scale, cap, chunks or sliding windows of attention, or "
        "keeps other rows and states of layers, than the model; give it a context that this "
        "model's prefill made");
  }
  if (!stores_equal_index_keys(own, its)) {
    throw InvalidArgument(fmt::format(
        "the session's context has {}, and the model {}; give it a context that this model's "
        "prefill made, with the same file of an indexer or with none",
        its.indexer ? "index keys of a trained indexer" : "no index keys",
        own.indexer ? "has an indexer that makes other index keys" : "has no trained indexer"));
  }
  if (session.device().compute() == device.compute()) return;
  throw InvalidArgument(
      fmt::format("the session is on {}, the model on {}; open the session with "
                  "the model's device()",
                  session.device().name(), device.name()));
}

void Model::Impl::check_weights() const {
  const std::unique_ptr<Checkpoint> again = Checkpoint::open(directory);
  // Ask for those that are used.
  Weights::size(*again, config, *device.compute(), format);
  if (draft_layer) Weights::draft_layer_size(*again, config, *device.compute(), format);
  again->check_finite();
}

Model Model::load(const std::filesystem::path& model, const Device& device, WarningFn on_warning,
                  const LoadOptions& options) {
  return Model(std::make_unique<Impl>(model, device, std::move(on_warning), options));
}

bool Model::has_weights(const std::filesystem::path& model) {
  return is_model_file(model) || has_weight_files(model);
}

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::int8:
      return "int8";
    case WeightFormat::int4:
      return "int4";
    default:
      return "stored";
  }
}

WeightFormat parse_weight_format(std::string_view name) {
  for (const auto format : {WeightFormat::stored, WeightFormat::int8, WeightFormat::int4}) {
    if (name == name_of(format)) return format;
  }
  throw InvalidArgument(fmt::format("unknown weight format \"{}\"; expected stored, int8 or int4",
                                    printable_beginning(name)));
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const ModelConfig& Model::config() const { return impl_->config; }
const Device& Model::device() const { return impl_->device; }
WeightFormat Model::weights() const { return impl_->format; }
void Model::check_reach(std::int64_t tokens) const { impl_->check_reach(tokens); }
std::int64_t Model::draft_layer_bytes() const {
  return impl_->draft_layer ? impl_->draft_layer->session_bytes() : 0;
}

const Tokenizer& Model::tokenizer() const { return impl_->text_tokenizer(); }

const Tokenizer& Model::Impl::text_tokenizer() const {
  if (!tokenizer) {
    throw FileError(fmt::format(
        "{}: has no {} to encode text with; expected one {}", path_text(directory),
        is_model_file(directory) ? "tokenizer" : "tokenizer.json",
        is_model_file(directory) ? "in its metadata (tokenizer.ggml.*)" : "beside the weights"));
  }
  return *tokenizer;
}

}  // namespace topkv
