#include "src/text/tokens/unigram.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <iterator>
#include <utility>

#include "src/core/text/utf8.h"
#include "src/text/tokens/byte_allowance.h"

namespace topkv {
namespace {

constexpr double unknown_penalty = 10;  // SentencePiece's

std::vector<std::pair<std::string_view, Token>> contents(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, Token>> all;
  for (const auto& [content, token] : vocabulary.ids()) all.emplace_back(content, token);
  return all;
}

}  // namespace

Unigram::Unigram(const Vocabulary& vocabulary, std::vector<double> scores, Token unknown,
                 bool byte_fallback)
    : pieces_(contents(vocabulary)),
      scores_(std::move(scores)),
      unknown_(unknown),
      unknown_score_(std::ranges::min(scores_) - unknown_penalty) {
  for (int byte = 0; byte < 256; ++byte) {
    byte_tokens_[static_cast<std::size_t>(byte)] =
        byte_fallback ? vocabulary.find(byte_piece(static_cast<unsigned char>(byte))) : -1;
  }
}

void Unigram::encode(std::string_view text, WordCache& cache, std::vector<Token>& out) const {
  assert(text.size() <= ByteAllowance::longest_text);
  if (text.size() > WordCache::max_piece_bytes) {
    search(text, out);
    return;
  }
  const auto known = cache.find(text);
  if (!known.empty()) {
    out.insert(out.end(), known.begin(), known.end());
    return;
  }
  const std::size_t begin = out.size();
  search(text, out);
  cache.insert(text, std::span(out).subspan(begin));
}

void Unigram::search(std::string_view text, std::vector<Token>& out) const {
  // The best way to each place between characters.
  struct Node {
    double score = 0;
    std::int32_t begin = -1;  // of its last piece; -1: not reached yet
    Token token = -1;
  };
  std::vector<Node> nodes(text.size() + 1);
  for (std::size_t at = 0; at < text.size();) {
    const double before = nodes[at].score;
    const std::size_t character = first_utf8_char(text.substr(at)).bytes;
    const auto reach = [&](std::size_t bytes, Token token, double score) {
      Node& node = nodes[at + bytes];
      const double sum = score + before;
      if (node.begin < 0 || sum > node.score) node = {sum, static_cast<std::int32_t>(at), token};
    };
    bool single = false;  // the character is a piece by itself
    pieces_.prefixes(text.substr(at), [&](std::size_t bytes, Token token) {
      reach(bytes, token, scores_[static_cast<std::size_t>(token)]);
      single = single || bytes == character;
    });
    if (!single) reach(character, unknown_, unknown_score_);
    at += character;
  }
  // From the end to the beginning, then turned around.
  const std::size_t first = out.size();
  for (std::size_t end = text.size(); end > 0;) {
    std::size_t begin = static_cast<std::size_t>(nodes[end].begin);
    if (nodes[end].token != unknown_) {
      out.push_back(nodes[end].token);
    } else {
      while (begin > 0 && nodes[begin].token == unknown_) {
        begin = static_cast<std::size_t>(nodes[begin].begin);
      }
      append_unknown(text.substr(begin, end - begin), out);
    }
    end = begin;
  }
  std::reverse(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
}

/// In reverse. Several unknown characters, or the unknown token's own text among them, may be a
/// piece together.
void Unigram::append_unknown(std::string_view text, std::vector<Token>& out) const {
  const Token whole = pieces_.find(text);
  if (whole >= 0) {
    out.push_back(whole);
    return;
  }
  const auto token_of = [&](char byte) { return byte_tokens_[static_cast<unsigned char>(byte)]; };
  if (std::ranges::any_of(text, [&](char byte) { return token_of(byte) < 0; })) {
    out.push_back(unknown_);
    return;
  }
  std::transform(text.rbegin(), text.rend(), std::back_inserter(out), token_of);
}

}  // namespace topkv
