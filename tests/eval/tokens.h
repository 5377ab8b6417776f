// A tokenizer for tests of texts: a token for each word with the white space behind it, so that
// lengths can be checked by eye and tokens be read again.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/eval/tasks/eval_task.h"

namespace topkv {

class WordTokens {
 public:
  std::vector<Token> encode(std::string_view text) {
    std::vector<Token> tokens;
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end = text.find_first_of(" \n", begin);
      end = text.find_first_not_of(" \n", std::min(end, text.size()));
      end = std::min(end, text.size());
      const std::string word(text.substr(begin, end - begin));
      const auto [at, added] = ids_.try_emplace(word, static_cast<Token>(words_.size()));
      if (added) words_.push_back(word);
      tokens.push_back(at->second);
      begin = end;
    }
    return tokens;
  }
  std::string text(const std::vector<Token>& tokens) const {
    std::string text;
    for (const Token token : tokens) text += words_[static_cast<std::size_t>(token)];
    return text;
  }

 private:
  std::map<std::string, Token> ids_;
  std::vector<std::string> words_;
};

/// One for a test: it must outlive the tasks.
inline TaskTokens tokens_of(WordTokens& words) {
  return {[&words](std::string_view text) { return words.encode(text); }, words.encode("<s>")};
}

}  // namespace topkv
