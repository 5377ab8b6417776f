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

std::string with_inserted(const std::vector<std::string>& sentences,
                          const std::vector<std::string>& inserted,
                          const std::vector<std::int64_t>& places) {
  std::string text;
  const auto add = [&](const std::string& sentence) {
    if (!text.empty()) text += ' ';
    text += sentence;
  };
  std::size_t next = 0;
  for (std::int64_t at = 0; at <= std::ssize(sentences); ++at) {
    while (next < places.size() && places[next] == at) add(inserted[next++]);
    if (at < std::ssize(sentences)) add(sentences[static_cast<std::size_t>(at)]);
  }
  return text;
}

std::vector<std::int64_t> even_places(std::int64_t sentences, std::int64_t count) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < count; ++i) places.push_back((2 * i + 1) * sentences / (2 * count));
  return places;
}

}  // namespace topkv
