#include "topkv/tokenizer.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "src/core/printable.h"
#include "src/core/utf8.h"
#include "src/text/tokenizer_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// U+FFFD for its bytes may make a text three times as long before any step.
constexpr std::size_t max_text_bytes = std::size_t{1} << 29U;
static_assert(3 * max_text_bytes <= ByteAllowance::longest_text);

}  // namespace

struct Tokenizer::Impl {
  std::string file;
  TokenizerParts parts;

  void encode(std::string_view text, std::vector<Token>& out) const;
};

void Tokenizer::Impl::encode(std::string_view text, std::vector<Token>& out) const {
  Normalizer::Scratch normalizing;
  PreTokenizer::Scratch cutting;
  WordCache cache;
  ByteAllowance allowance(text.size());
  const PreTokenizer::PieceFn piece = [&](std::string_view word) {
    std::visit([&](const auto& model) { model.encode(word, cache, out); }, parts.model);
  };
  bool at_front = true;  // nothing was found before
  parts.added_raw.split(text, [&](std::string_view raw, Token raw_token) {
    if (raw_token >= 0) {
      out.push_back(raw_token);
      at_front = false;
      return;
    }
    const auto normalized = parts.normalizer.apply(raw, normalizing, allowance);
    at_front = at_front && normalized.at_front;
    parts.added_normalized.split(normalized.text, [&](std::string_view part, Token token) {
      if (token >= 0) {
        out.push_back(token);
      } else {
        parts.pre_tokenizer.split(part, at_front, cutting, allowance, piece);
      }
      at_front = false;
    });
    at_front = false;
  });
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& file) {
  return Tokenizer(std::make_unique<Impl>(Impl{path_text(file), read_tokenizer_file(file)}));
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (text.size() >= max_text_bytes) {
    throw InvalidArgument(fmt::format(
        "the text to encode has {} bytes; expected less than 512 MiB: encode it in parts",
        text.size()));
  }
  std::string repaired;
  if (valid_utf8_bytes(text) < text.size()) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  const TokenTemplate& around = impl_->parts.around;
  std::vector<Token> out;
  out.reserve(text.size() / 4 + 16);
  if (add_special_tokens) out.insert(out.end(), around.before.begin(), around.before.end());
  try {
    impl_->encode(text, out);
  } catch (const FileError& error) {
    throw FileError(impl_->file + ": " + error.what());
  }
  if (add_special_tokens) out.insert(out.end(), around.after.begin(), around.after.end());
  return out;
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  return impl_->parts.vocabulary.text(tokens);
}

std::string Tokenizer::bytes_of_token(Token token) const {
  return impl_->parts.vocabulary.bytes(token);
}

Token Tokenizer::find(std::string_view content) const {
  return impl_->parts.vocabulary.find(content);
}

std::int64_t Tokenizer::vocab_size() const { return impl_->parts.vocabulary.size(); }

}  // namespace topkv
