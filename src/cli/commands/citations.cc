#include "src/cli/commands/citations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "src/cli/terminal/text_layout.h"
#include "src/core/text/common_tokens.h"
#include "src/core/text/printable.h"
#include "src/core/text/stripped.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

constexpr std::string_view spaces = " \t\r\n";
constexpr std::int64_t neutral_tokens = 16;  // of the answer to a question about nothing
// Positions that draw attention from any question draw more or less of it: they count only with
// twice the attention to a question about nothing (bench/citations.py).
constexpr double neutral_weight = 2;
constexpr std::size_t most_shown = 100;  // characters of a line

std::string text_of(const Tokenizer& tokenizer, Token token) {
  std::string bytes = tokenizer.bytes_of_token(token);
  return bytes.empty() ? tokenizer.content_of_token(token) : bytes;
}

std::string text_of(const Tokenizer& tokenizer, std::span<const Token> tokens) {
  std::string text;
  for (const Token token : tokens) text += text_of(tokenizer, token);
  return text;
}

}  // namespace

void check_cite(const AnswerFlags& answers, const RetrievalFlags& retrieval, const Device& device) {
  if (!answers.cite) return;
  for (const auto& [given, flag] : {std::pair{retrieval.mass.has_value(), "--kv-mass"},
                                    {retrieval.error.has_value(), "--kv-error"},
                                    {retrieval.guarantee.has_value(), "--kv-guarantee"}}) {
    if (given) {
      throw UsageError(fmt::format(
          "--cite: attention is measured with a fixed number of rows; leave {} out", flag));
    }
  }
  if (device.is_cuda()) {
    throw UsageError(fmt::format(
        "--cite: attention is measured on a CPU, found {}; give --device cpu, or leave it out",
        device.name()));
  }
}

void check_cite(const AnswerFlags& answers, const AttentionShape& shape) {
  if (!answers.cite || (shape.chunk_len == 0 && !shape.indexer)) return;
  throw Unsupported(fmt::format("--cite: attention is not measured with {}; leave it out",
                                shape.indexer ? "a trained indexer" : "dual chunk attention"));
}

std::vector<ContextSource> sources_of(const Tokenizer& tokenizer, std::span<const Token> tokens,
                                      std::string_view text, std::span<const TextFile> files) {
  const std::string all = text_of(tokenizer, tokens);
  // The last word of the text may be read with the question.
  constexpr std::size_t most_joined = 256;
  const std::size_t least = text.size() - std::min(text.size(), most_joined);
  std::size_t begin = least > 0 ? all.find(text.substr(0, least)) : all.npos;
  for (std::size_t size = text.size(); least == 0 && begin == all.npos && size > 0; --size)
    begin = all.find(text.substr(0, size));
  if (begin == all.npos) return {};
  const auto same = std::ranges::mismatch(std::string_view(all).substr(begin), text);
  if (same.in1 != std::string_view(all).end() && same.in2 != text.end()) return {};
  std::vector<ContextSource> sources;
  for (const TextFile& file : files) {
    sources.push_back(
        {.name = file.name, .begin = static_cast<std::int64_t>(begin), .bytes = file.bytes});
    begin += static_cast<std::size_t>(file.bytes);
  }
  return sources;
}

CitedText::CitedText(const Tokenizer& tokenizer, std::span<const Token> tokens,
                     std::string_view left, std::vector<ContextSource> sources)
    : tokenizer_(&tokenizer), sources_(std::move(sources)) {
  for (const Token token : tokens) text_ += text_of(tokenizer, token);
  held_bytes_ = text_.size();
  text_ += left;
  for (std::size_t source = 0; source < sources_.size(); ++source) add_lines(source);
  std::size_t at = 0;
  for (const Token token : tokens) {
    const std::string text = text_of(tokenizer, token);
    add_place(text, at, line_of_);
    at += text.size();
  }
}

/// Adds the line of a token: that of its first byte that is no space.
void CitedText::add_place(std::string_view text, std::size_t begin,
                          std::vector<std::int64_t>& lines) const {
  const std::size_t first = text.find_first_not_of(spaces);
  lines.push_back(line_at(begin + (first == text.npos ? 0 : first)));
}

/// Returns -1 for a place that is in no file.
std::int64_t CitedText::line_at(std::size_t place) const {
  const auto next = std::ranges::upper_bound(lines_, place, {}, &Line::begin);
  const bool within = next != lines_.begin() && place < std::prev(next)->end;
  return within ? std::distance(lines_.begin(), next) - 1 : -1;
}

void CitedText::add_lines(std::size_t source) {
  const auto begin = std::min(static_cast<std::size_t>(sources_[source].begin), text_.size());
  const auto end = std::min(begin + static_cast<std::size_t>(sources_[source].bytes), text_.size());
  std::int64_t number = 1;
  for (std::size_t at = begin; at < end; ++number) {
    const std::size_t stop = std::min(text_.find('\n', at), end - 1) + 1;
    lines_.push_back({source, number, at, stop});
    at = stop;
  }
}

std::vector<Citation> CitedText::cite(std::span<const double> attention,
                                      std::span<const double> neutral,
                                      std::span<const Token> own) const {
  std::vector<std::int64_t> line_of = line_of_;
  std::size_t at = held_bytes_;
  for (const Token token : own) {
    if (at >= text_.size()) break;
    const std::string text = text_of(*tokenizer_, token);
    add_place(text, at, line_of);
    at += text.size();
  }
  const std::size_t count = std::min({line_of.size(), attention.size(), neutral.size()});
  double all = 0;
  double all_neutral = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (line_of[i] < 0) continue;
    all += attention[i];
    all_neutral += neutral[i];
  }
  const double part = all_neutral > 0 ? all / all_neutral : 0;
  std::vector<double> scores(lines_.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (line_of[i] < 0) continue;
    scores[static_cast<std::size_t>(line_of[i])] +=
        std::max(0.0, attention[i] - neutral_weight * part * neutral[i]);
  }
  const double drawn = std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<std::size_t> order(lines_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto best =
      order.begin() + static_cast<std::ptrdiff_t>(std::min(most_citations, order.size()));
  std::ranges::partial_sort(order, best, std::ranges::greater(),
                            [&](std::size_t line) { return scores[line]; });
  std::vector<Citation> citations;
  for (auto at = order.begin(); at != best; ++at) {
    const Line& line = lines_[*at];
    if (scores[*at] <= 0) break;
    const std::string_view text = std::string_view(text_).substr(line.begin, line.end - line.begin);
    citations.push_back({.file = sources_[line.source].name,
                         .line = line.number,
                         .share = scores[*at] / drawn,
                         .text = std::string(stripped(text))});
  }
  return citations;
}

CitedText cited_text(const Tokenizer& tokenizer, std::span<const Token> tokens,
                     std::string_view text, std::span<const TextFile> files) {
  std::vector<ContextSource> sources = sources_of(tokenizer, tokens, text, files);
  if (sources.empty()) {
    throw Unsupported(
        "--cite: the tokenizer or the chat template changes the text of the files, so that their "
        "lines cannot be told apart; leave --cite out");
  }
  const std::size_t held =
      text_of(tokenizer, tokens).size() - static_cast<std::size_t>(sources.front().begin);
  return {tokenizer, tokens, text.substr(std::min(held, text.size())), std::move(sources)};
}

std::vector<Token> neutral_prompt(const Conversation& conversation,
                                  const std::vector<Token>& context) {
  const std::vector<Token> asked = conversation.only(neutral_question);
  const std::size_t same = std::min(common_tokens(context, asked), asked.size() - 1);
  return {asked.begin() + static_cast<std::ptrdiff_t>(same), asked.end()};
}

std::vector<double> neutral_attention(const Model& model,
                                      const std::shared_ptr<const Context>& context,
                                      RetrievalOptions options, std::span<const Token> prompt) {
  options.capacity = std::ssize(prompt) + neutral_tokens + 1;
  Session session(context, std::move(options), model.device());
  model.generate(session, prompt, {.max_tokens = neutral_tokens});
  return session.attention_by_position();
}

void print_citations(std::span<const Citation> citations) {
  if (citations.empty()) {
    fmt::print(stderr, "[no line of the files drew more attention than from any question]\n");
  }
  for (std::size_t i = 0; i < citations.size(); ++i) {
    const Citation& of = citations[i];
    fmt::print(stderr, "[{}] {}:{}  {:.0f} %  {}\n", i + 1, topkv::printable(of.file), of.line,
               100 * of.share, one_line(of.text, most_shown));
  }
}

Json json_of(std::span<const Citation> citations) {
  Json list = Json::array();
  for (const Citation& of : citations) {
    list.push_back({{"file", of.file}, {"line", of.line}, {"share", of.share}, {"text", of.text}});
  }
  return list;
}

}  // namespace topkv::cli
