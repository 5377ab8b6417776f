#include "src/serve/run/prompt_boundary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv::serve {
namespace {

/// Stands for a text where a template is rendered without it: no template knows it, and nothing in
/// it joins to what is around it.
const std::string stand_in = "\x1ftopkv\x1f";

/// Prompts that begin with the kinds of characters that join to what is before them.
constexpr std::array<const char*, 6> prompts = {"a", "?", " b", "\nc", "1", "\xc3\xa9"};

/// A text as it is rendered around a prompt.
using Render = std::function<std::string(const std::string& text, const std::string& prompt)>;

/// What is rendered around the text.
struct Around {
  std::string before;
  std::string behind;
};

Around around_text(const std::string& all) {
  const std::size_t at = all.find(stand_in);
  if (at == all.npos || all.find(stand_in, at + 1) != all.npos) {
    throw Unsupported(
        "the chat template changes, repeats or leaves out the text of a question, so that a "
        "context in it cannot be kept");
  }
  return {.before = all.substr(0, at), .behind = all.substr(at + stand_in.size())};
}

std::string behind(const Render& render, const std::string& prompt) {
  return around_text(render(stand_in, prompt)).behind;
}

/// Bytes of the text that are left at least: its last word, which any prompt may go on with.
std::size_t least_left(const std::string& text) {
  constexpr std::size_t longest_word = 64;
  const std::size_t space = text.find_last_of(" \t\n\r");
  const std::size_t word = space == text.npos ? text.size() : text.size() - space;
  return std::min(word, longest_word);
}

/// What a tokenizer keeps of the prompts: characters without a token are left out of every text,
/// and asking for them is no loss that a user is to hear of.
std::vector<std::string> kept_parts(const Tokenizer& tokenizer) {
  std::vector<std::string> kept;
  for (const std::string_view prompt : prompts) {
    std::string& part = kept.emplace_back(prompt);
    if (tokenizer.left_out(part).empty()) continue;
    std::erase_if(part, [&](char c) {
      return static_cast<unsigned char>(c) >= 0x80 || !tokenizer.left_out({&c, 1}).empty();
    });
  }
  return kept;
}

KeptPrompt find_end(const Tokenizer& tokenizer, const std::vector<Token>& beginning,
                    const std::string& text, const Render& render, const Between& between) {
  const std::vector<std::string> known = kept_parts(tokenizer);
  std::vector<std::vector<Token>> whole;  // of each prompt
  for (const std::string& prompt : known) {
    if (between) between();
    std::vector<Token>& tokens = whole.emplace_back(beginning);
    const std::vector<Token> more = tokenizer.encode(render(text, prompt));
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  // The shortest end of the text that, read by itself with any prompt behind it, has the tokens
  // that it has there: those before it are the context's.
  constexpr std::size_t longest = 4096;
  for (std::size_t left = least_left(text); left <= std::min(longest, text.size()); ++left) {
    if (between) between();
    const std::string end = text.substr(text.size() - left);
    if ((static_cast<unsigned char>(end[0]) & 0xc0) == 0x80) continue;  // within a character
    std::vector<Token> before;
    bool all = true;
    for (std::size_t i = 0; all && i < whole.size(); ++i) {
      const std::vector<Token> rest = tokenizer.encode(end + behind(render, known[i]));
      all = rest.size() <= whole[i].size() &&
            std::equal(rest.rbegin(), rest.rend(), whole[i].rbegin());
      if (!all) break;
      const std::vector<Token> kept(whole[i].begin(),
                                    whole[i].end() - static_cast<std::ptrdiff_t>(rest.size()));
      if (i == 0) before = kept;
      all = kept == before;
    }
    if (all) return {.tokens = std::move(before), .end = {.text_left = end}};
  }
  throw Unsupported(
      "the end of the text has no place where its tokens stay the same with every prompt; end the "
      "text with a line end");
}

ChatMessage message(const char* role, const std::string& content) { return {role, content}; }

std::string rendered(const ChatTemplate& chat, const std::string& system,
                     const std::string& question) {
  std::vector<ChatMessage> messages;
  if (!system.empty()) messages.push_back(message("system", system));
  messages.push_back(message("user", question));
  return chat.render(messages, true);
}

}  // namespace

KeptPrompt kept_prompt(const Tokenizer& tokenizer, const std::string& text,
                       const Between& between) {
  return find_end(
      tokenizer, tokenizer.beginning_tokens(), text,
      [](const std::string& before, const std::string& prompt) { return before + prompt; },
      between);
}

KeptPrompt kept_prompt(const Tokenizer& tokenizer, const ChatTemplate& chat,
                       const std::string& system, const std::string& text, const Between& between) {
  KeptPrompt kept = find_end(
      tokenizer, {}, text,
      [&](const std::string& before, const std::string& prompt) {
        return rendered(chat, system, before + prompt);
      },
      between);
  kept.end.chat = true;
  kept.end.system = system;
  return kept;
}

void check_keeps_texts(const ChatTemplate& chat, const std::string& system) {
  for (const char* prompt : prompts) around_text(rendered(chat, system, stand_in + prompt));
}

std::vector<Token> tokens_of_prompt(const Tokenizer& tokenizer, const ContextEnd& end,
                                    const std::optional<ChatTemplate>& chat,
                                    const std::string& prompt, const std::string& variables) {
  if (!end.chat) return tokenizer.encode(end.text_left + prompt);
  const ChatMessage question = message("user", prompt);
  return tokens_of_conversation(tokenizer, end, *chat, {&question, 1}, variables);
}

std::vector<Token> tokens_of_conversation(const Tokenizer& tokenizer, const ContextEnd& end,
                                          const ChatTemplate& chat,
                                          std::span<const ChatMessage> messages,
                                          const std::string& variables) {
  const bool says_system = !messages.empty() && (messages.front().role == "system" ||
                                                 messages.front().role == "developer");
  // The context has it: clients send it with each request.
  const bool has_it = says_system && messages.front().content == end.system;
  if (has_it) messages = messages.subspan(1);
  std::vector<ChatMessage> all;
  if (!end.system.empty() && (has_it || !says_system)) all.push_back(message("system", end.system));
  all.insert(all.end(), messages.begin(), messages.end());
  const auto question = std::ranges::find(all, "user", &ChatMessage::role);
  if (question == all.end())
    throw InvalidArgument("there is no message of the user; expected one that asks a question");
  question->content = stand_in + question->content;
  const Around around = around_text(chat.render(all, true, variables));
  const bool fits = around.before == around_text(rendered(chat, end.system, stand_in)).before;
  if (!fits && says_system && !has_it)
    throw InvalidArgument(fmt::format(
        "the first message is another system message than the context's, which {}; leave it out, "
        "or send the context's",
        end.system.empty() ? "has none" : "is \"" + printable_beginning(end.system) + "\""));
  if (!fits)
    throw InvalidArgument(
        "with these messages the chat template puts other text before the context's text than when "
        "it was read; send the user's message first");
  return tokenizer.encode(end.text_left + around.behind);
}

}  // namespace topkv::serve
