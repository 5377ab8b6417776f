#include "topkv/tokenizer.h"

#include <fmt/format.h>

#include <atomic>
#include <numeric>
#include <optional>
#include <utility>
#include <variant>

#include "src/core/text/printable.h"
#include "src/core/text/utf8.h"
#include "src/text/files/tokenizer_file.h"
#include "topkv/error.h"

namespace topkv {
namespace {

// U+FFFD for its bytes may make a text three times as long before any step.
constexpr std::size_t max_text_bytes = std::size_t{1} << 29U;
static_assert(3 * max_text_bytes <= ByteAllowance::longest_text);

/// One line; empty where nothing is left out.
std::string left_out_text(const ByteCounts& counts) {
  constexpr std::size_t most_named = 8;
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (total == 0) return {};
  std::vector<std::string> bytes;
  for (std::size_t byte = 0; byte < counts.size(); ++byte) {
    if (counts[byte] > 0) bytes.push_back(fmt::format("0x{:02x} ({})", byte, counts[byte]));
  }
  return fmt::format("the vocabulary has no token for {} byte{} of the text, left out: {}", total,
                     total == 1 ? "" : "s", listed(bytes, most_named));
}

}  // namespace

struct Tokenizer::Impl {
  Impl(std::string path, TokenizerParts read, WarningFn warning)
      : file(std::move(path)), parts(std::move(read)), on_warning(std::move(warning)) {
    const Bpe* const bpe = std::get_if<Bpe>(&parts.model);
    if (bpe != nullptr && !bpe->complete()) incomplete = bpe;
  }

  /// Adds what has no token to left_out, unless null.
  void encode(std::string_view text, std::vector<Token>& out, ByteCounts* left_out) const;
  void encode_within_limits(std::string_view text, std::vector<Token>& out,
                            ByteCounts* left_out) const;

  std::string file;
  TokenizerParts parts;
  WarningFn on_warning;
  const Bpe* incomplete = nullptr;  // the model, where it may leave bytes out
  mutable std::atomic<bool> warned = false;
};

void Tokenizer::Impl::encode(std::string_view text, std::vector<Token>& out,
                             ByteCounts* left_out) const {
  Normalizer::Scratch normalizing;
  PreTokenizer::Scratch cutting;
  WordCache cache;
  ByteAllowance allowance(text.size());
  const PreTokenizer::PieceFn piece = [&](std::string_view word) {
    std::visit([&](const auto& model) { model.encode(word, cache, out); }, parts.model);
    if (left_out != nullptr) incomplete->count_left_out(word, *left_out);
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

void Tokenizer::Impl::encode_within_limits(std::string_view text, std::vector<Token>& out,
                                           ByteCounts* left_out) const {
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
  out.reserve(out.size() + text.size() / 4 + 16);
  try {
    encode(text, out, left_out);
  } catch (const FileError& error) {
    throw FileError(file + ": " + error.what());
  }
}

Tokenizer Tokenizer::load(const std::filesystem::path& file, WarningFn on_warning) {
  return Tokenizer(
      std::make_unique<Impl>(path_text(file), read_tokenizer_file(file), std::move(on_warning)));
}

std::vector<Token> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const TokenTemplate& around = impl_->parts.around;
  std::vector<Token> out;
  if (add_special_tokens) out.insert(out.end(), around.before.begin(), around.before.end());
  const bool count = impl_->incomplete != nullptr && impl_->on_warning && !impl_->warned;
  ByteCounts left_out = {};
  impl_->encode_within_limits(text, out, count ? &left_out : nullptr);
  if (add_special_tokens) out.insert(out.end(), around.after.begin(), around.after.end());
  const std::string line = left_out_text(left_out);
  if (!line.empty() && !impl_->warned.exchange(true)) {
    impl_->on_warning(impl_->file + ": " + line +
                      "; later texts lose such bytes without a warning");
  }
  return out;
}

std::vector<Token> Tokenizer::beginning_tokens() const { return impl_->parts.around.before; }

std::string Tokenizer::left_out(std::string_view text) const {
  if (impl_->incomplete == nullptr) return {};
  std::vector<Token> tokens;
  ByteCounts counts = {};
  impl_->encode_within_limits(text, tokens, &counts);
  return left_out_text(counts);
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

std::string Tokenizer::content_of_token(Token token) const {
  return impl_->parts.vocabulary.content(token);
}

std::int64_t Tokenizer::vocab_size() const { return impl_->parts.vocabulary.size(); }

}  // namespace topkv
