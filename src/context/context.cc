#include "topkv/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "src/context/index_build.h"
#include "src/context/segment.h"
#include "topkv/error.h"
#include "topkv/session.h"

namespace topkv {
namespace {

/// Returns the tail that sessions with these options need beside their index; none: no such tail.
/// Throws InvalidArgument for an invalid spec and for an index without a tail.
std::optional<IndexSpec> tail_of(const RetrievalOptions& options) {
  if (options.tail.empty() || options.tail == no_tail) return {};
  IndexSpec tail(options.tail);
  if (tail.has_tail()) return tail;
  throw InvalidArgument(
      fmt::format("tail: '{}' is an index that has no tail; expected none, mean, or an index that "
                  "codes values, such as codes:k=16,v=8",
                  tail.text()));
}

}  // namespace

Context::Context(AttentionShape shape, Segment segment)
    : shape_(std::move(shape)), segment_(std::make_shared<const Segment>(std::move(segment))) {}

std::int64_t Context::tokens() const { return segment_->states->tokens(0); }

KvDType Context::dtype() const { return segment_->states->rows().dtype(); }

ContextMemory Context::memory() const {
  ContextMemory memory;
  memory.rows_bytes = segment_->states->rows().bytes();
  memory.states_bytes = segment_->states->state_bytes();
  for (const auto& index : segment_->indices) memory.index_bytes += index->memory(!index->shared);
  if (segment_->queries) memory.queries_bytes = segment_->queries->memory();
  return memory;
}

std::int64_t Context::index_memory(std::string_view spec) const {
  return segment_->index(spec).memory(true);
}

std::int64_t Context::bytes_read_to_search(std::string_view spec, std::int64_t from_layer) const {
  const SegmentIndex& index = segment_->index(spec);
  std::int64_t sum = 0;
  for (std::int64_t layer = from_layer; layer < shape_.layers; ++layer) {
    for (const auto& head : index.layer(layer).heads) {
      const std::int64_t bytes = head->bytes_searched();
      if (bytes < 0) return -1;
      sum += bytes;
    }
  }
  return sum;
}

std::int64_t Context::bytes_read_to_estimate(std::string_view tail_spec,
                                             std::string_view beside_index,
                                             std::int64_t from_layer) const {
  const SegmentIndex& tail = segment_->index(tail_spec);
  const SegmentIndex& index = segment_->index(beside_index);
  std::int64_t sum = 0;
  for (std::int64_t layer = from_layer; layer < shape_.layers; ++layer) {
    const LayerIndex& of = tail.layer(layer);
    for (std::size_t head = 0; head < of.heads.size(); ++head) {
      if (of.heads[head] != index.layer(layer).heads[head])
        sum += std::max<std::int64_t>(of.heads[head]->bytes_searched(), 0);
      if (of.tails[head] != nullptr) sum += of.tails[head]->bytes_read(shape_.group());
    }
  }
  return sum;
}

std::vector<std::string> Context::indices() const { return segment_->specs(); }

bool Context::has_index(std::string_view spec) const {
  return segment_->find(IndexSpec(spec).text()) != nullptr;
}

RowsView Context::rows(std::int64_t layer, std::int64_t kv_head) const {
  const bool known = layer >= 0 && layer < shape_.layers;
  if (!known || kv_head < 0 || kv_head >= shape_.kv_heads_of(layer)) {
    throw InvalidArgument(
        fmt::format("rows of layer {}, KV head {}: the context has {} layers of {} KV heads", layer,
                    kv_head, shape_.layers, known ? shape_.kv_heads_of(layer) : shape_.kv_heads));
  }
  if (!shape_.is_attention(layer)) {
    throw InvalidArgument(
        fmt::format("layer {} keeps a recurrent state and so has no rows and no index", layer));
  }
  return segment_->rows(layer, kv_head).part({first_row(layer), tokens()});
}

std::int64_t Context::first_row(std::int64_t layer) const {
  if (layer < 0 || layer >= shape_.layers)
    throw InvalidArgument(
        fmt::format("layer {} of a context with {} layers", layer, shape_.layers));
  return segment_->states->rows().first_row(layer);
}

std::span<const float> Context::state(std::int64_t layer) const {
  return segment_->states->values(layer);
}

std::shared_ptr<const StateMemory> Context::state_memory(std::int64_t layer) const {
  return segment_->states->state(layer).memory();
}

const KeyIndex& Context::index(std::string_view spec, std::int64_t layer,
                               std::int64_t kv_head) const {
  rows(layer, kv_head);  // checks layer and head
  const auto& heads = segment_->index(spec).layer(layer).heads;
  if (!heads.empty()) return *heads[static_cast<std::size_t>(kv_head)];
  throw InvalidArgument(
      fmt::format("layer {} attends a sliding window of {} tokens and so has no index", layer,
                  shape_.window_of(layer)));
}

std::shared_ptr<const Context> Context::with_index(std::string_view text,
                                                   const ProgressFn& progress,
                                                   const Device& device) const {
  const IndexSpec spec(text);
  Segment segment = *segment_;
  if (segment.find(spec.text()) == nullptr) {
    spec.check(shape_.head_dim, tokens());
    segment.indices.push_back(build_index(spec, shape_, segment, progress, device));
  }
  return std::shared_ptr<const Context>(new Context(shape_, std::move(segment)));
}

std::shared_ptr<const Context> Context::with_tokens(std::span<const Token> tokens) const {
  if (std::ssize(tokens) != this->tokens()) {
    throw InvalidArgument(
        fmt::format("with_tokens: {} tokens for a context of {}; give all of them", tokens.size(),
                    this->tokens()));
  }
  Segment segment = *segment_;
  segment.token_index = std::make_shared<const TokenIndex>(tokens);
  return std::shared_ptr<const Context>(new Context(shape_, std::move(segment)));
}

bool Context::knows_tokens() const { return segment_->token_index != nullptr; }

std::shared_ptr<const Context> Context::ready_for(const RetrievalOptions& options,
                                                  const ProgressFn& progress,
                                                  const Device& device) const {
  const IndexSpec index(options.index);
  index.check_index();
  const std::optional<IndexSpec> tail = tail_of(options);
  const auto lacks = [](const Context& context, const IndexSpec& spec) {
    return context.segment_->find(spec.text()) == nullptr;
  };
  // Both are checked before the first is built, which may take minutes.
  if (lacks(*this, index)) index.check(shape_.head_dim, tokens());
  if (tail && lacks(*this, *tail)) tail->check(shape_.head_dim, tokens());
  std::shared_ptr<const Context> ready = shared_from_this();
  if (lacks(*ready, index)) ready = ready->with_index(index.text(), progress, device);
  if (!tail || !lacks(*ready, *tail)) return ready;
  ProgressFn tail_progress;
  if (progress) {
    tail_progress = [&progress](Progress done) {
      done.stage = "tail";
      progress(done);
    };
  }
  return ready->with_index(tail->text(), tail_progress, device);
}

}  // namespace topkv
