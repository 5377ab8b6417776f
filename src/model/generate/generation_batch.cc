#include <fmt/format.h>

#include <utility>

#include "src/model/generate/decode_loop.h"
#include "topkv/error.h"

namespace topkv {

struct GenerationBatch::Impl {
  explicit Impl(const Model::Impl& model) : generation(model) {}

  /// Throws InvalidArgument within a step.
  void check_between_steps() const {
    if (!stepping) return;
    throw InvalidArgument(
        "a batch was called from one of its callbacks (on_token, progress); call it between its "
        "steps");
  }

  DecodeLoop generation;
  bool stepping = false;
};

namespace {

/// A step is under way while one lives.
class Stepping {
 public:
  explicit Stepping(bool& stepping) : stepping_(stepping) { stepping_ = true; }
  ~Stepping() { stepping_ = false; }
  Stepping(const Stepping&) = delete;  // belongs to one step
  Stepping& operator=(const Stepping&) = delete;

 private:
  bool& stepping_;
};

}  // namespace

GenerationBatch::GenerationBatch(const Model& model)
    : impl_(std::make_unique<Impl>(*model.impl_)) {}
GenerationBatch::~GenerationBatch() = default;
GenerationBatch::GenerationBatch(GenerationBatch&&) noexcept = default;
GenerationBatch& GenerationBatch::operator=(GenerationBatch&&) noexcept = default;

GenerationBatch::Id GenerationBatch::add(Session& session, std::span<const Token> prompt,
                                         const GenerateOptions& options, TokenFn on_token,
                                         TextFn on_text) {
  impl_->check_between_steps();
  if (size() == most_sessions) {
    throw InvalidArgument(
        fmt::format("the batch holds {} sessions, the most it can; add others when some have left",
                    most_sessions));
  }
  std::vector<Session*> all;
  for (const auto& one : impl_->generation.members()) all.push_back(one->session);
  all.push_back(&session);
  Session::check_together(all);
  return impl_->generation.add(session, prompt, options, std::move(on_token), std::move(on_text));
}

std::vector<GenerationBatch::Finished> GenerationBatch::step(bool reads) {
  impl_->check_between_steps();
  DecodeLoop& generation = impl_->generation;
  std::vector<Finished> finished;
  finished.reserve(static_cast<std::size_t>(size()));  // before anything has happened
  {
    const Stepping within(impl_->stepping);
    // Whose prompt ends here feeds its first token in the next step.
    generation.read_by_turns(reads);
    generation.feed();
    generation.tell();
  }
  generation.finished(finished);
  return finished;
}

GenerateResult GenerationBatch::remove(Id id) {
  impl_->check_between_steps();
  return impl_->generation.remove(id);
}

std::int64_t GenerationBatch::size() const { return std::ssize(impl_->generation.members()); }
std::int64_t GenerationBatch::reading() const { return impl_->generation.reading(); }
std::optional<PromptTurn> GenerationBatch::next_prompt() const {
  const ActiveAnswer* const next = impl_->generation.next_to_read();
  return next != nullptr ? std::optional(next->turn()) : std::nullopt;
}
ForwardTimes GenerationBatch::times() const { return impl_->generation.times(); }

}  // namespace topkv
