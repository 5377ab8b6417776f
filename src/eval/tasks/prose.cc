#include "src/eval/tasks/prose.h"

#include <algorithm>
#include <utility>

#include "topkv/error.h"

namespace topkv {
namespace {

constexpr const char* generated = "generated";

std::string no_distractor() { throw InvalidArgument("prose has no distractors"); }

}  // namespace

Prose::Prose(const std::string& name, std::uint64_t seed)
    : source_(make_haystack(name, seed, no_distractor)) {}

const std::string& Prose::sentence(std::int64_t number) {
  while (std::ssize(sentences_) <= number) sentences_.push_back(source_->next());
  return sentences_[static_cast<std::size_t>(number)];
}

std::vector<std::string> Prose::words(std::int64_t count) {
  std::vector<std::string> sentences;
  for (std::int64_t number = 0; count > 0; ++number) {
    const std::string& whole = sentence(number);
    const std::int64_t length = 1 + std::count(whole.begin(), whole.end(), ' ');
    if (length <= count) {
      sentences.push_back(whole);
    } else {
      std::size_t end = 0;
      for (std::int64_t word = 0; word < count; ++word) end = whole.find(' ', end + 1);
      sentences.push_back(whole.substr(0, end));
    }
    count -= length;
  }
  return sentences;
}

ProseSource::ProseSource(const std::string& directory)
    : name_(directory.empty() ? generated : directory) {
  if (!directory.empty()) texts_ = std::make_shared<Prose>(directory, 0);
}

std::shared_ptr<Prose> ProseSource::prose(std::uint64_t seed) const {
  return texts_ ? texts_ : std::make_shared<Prose>(generated, seed);
}

}  // namespace topkv
