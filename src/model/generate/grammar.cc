#include "topkv/grammar.h"

#include <utility>

#include "src/model/generate/grammar_impl.h"

namespace topkv {

std::shared_ptr<const Grammar> Grammar::json_schema(const Model& model, std::string_view schema) {
  const Model::Impl& of = *model.impl_;
  auto impl = std::make_unique<Impl>();
  impl->of = &of;
  impl->json = of.grammars.find(of.text_tokenizer(), of.config, schema);
  return std::shared_ptr<const Grammar>(new Grammar(std::move(impl)));
}

Grammar::Grammar(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Grammar::~Grammar() = default;

std::int64_t Grammar::bytes() const { return impl_->json->bytes(); }
const Grammar::Impl& Grammar::impl() const { return *impl_; }

}  // namespace topkv
