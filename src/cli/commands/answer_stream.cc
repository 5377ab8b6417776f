#include "src/cli/commands/answer_stream.h"

#include <fmt/format.h>

#include <cstdio>
#include <utility>

#include "src/cli/terminal/interrupt.h"
#include "src/cli/terminal/terminal.h"

namespace topkv::cli {
namespace {

void print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

void print_event(const Json& event) {
  print(event.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json json_of(const std::vector<TokenLogprob>& top) {
  Json list = Json::array();
  for (const TokenLogprob& one : top)
    list.push_back({{"token", one.token}, {"logprob", one.logprob}});
  return list;
}

Json AnswerStream::event(const char* kind) const { return {{"event", kind}, {"answer", number_}}; }

bool AnswerStream::take(Token token) {
  if (shown_ == Shown::as_events) {
    Json json = event("token");
    json["token"] = token;
    if (logprobs_.chosen.token == token) {
      json["logprob"] = logprobs_.chosen.logprob;
      json["top_logprobs"] = json_of(logprobs_.top);
    }
    print_event(json);
  }
  return !interrupted();
}

void AnswerStream::divide(serve::AnswerParts parts, bool hush) {
  parts_.emplace(std::move(parts));
  hush_ = hush;
}

bool AnswerStream::take(std::string_view piece) {
  if (parts_)
    show(parts_->push(piece));
  else
    show(piece);
  return !interrupted();
}

void AnswerStream::show(const serve::AnswerDelta& delta) {
  if (!delta.reasoning.empty()) {
    reasoning_ += delta.reasoning;
    if (shown_ == Shown::as_events) {
      Json json = event("reasoning");
      json["text"] = delta.reasoning;
      print_event(json);
    } else if (shown_ == Shown::at_once && !hush_) {
      thinks_ = true;
      const bool dim = shows_colour(stderr);
      fmt::print(stderr, "{}{}{}", dim ? "\x1b[2m" : "", delta.reasoning, dim ? "\x1b[0m" : "");
    }
  }
  if (!delta.content.empty()) show(delta.content);
}

void AnswerStream::show(std::string_view piece) {
  content_ += piece;
  if (std::exchange(thinks_, false)) fmt::print(stderr, "\n");
  switch (shown_) {
    case Shown::at_once:
      print(piece);
      break;
    case Shown::at_end:
      held_ += piece;
      break;
    case Shown::as_events: {
      Json json = event("text");
      json["text"] = piece;
      print_event(json);
      break;
    }
  }
}

void AnswerStream::finish() {
  if (parts_) show(parts_->finish());
  if (std::exchange(thinks_, false)) fmt::print(stderr, "\n");
  if (shown_ != Shown::as_events) print(held_ + "\n");
}

}  // namespace topkv::cli
