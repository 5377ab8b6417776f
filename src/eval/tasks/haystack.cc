#include "src/eval/tasks/haystack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>
#include <vector>

#include "src/core/io/files.h"
#include "src/eval/tasks/word_lists.h"
#include "topkv/error.h"

namespace topkv {
namespace {

class Noise final : public Haystack {
 public:
  std::string next() override {
    return "The grass is green. The sky is blue. The sun is yellow. Here we go. "
           "There and back again.";
  }
  std::string separator() const override { return "\n"; }
};

class Needles final : public Haystack {
 public:
  explicit Needles(std::function<std::string()> distractor) : distractor_(std::move(distractor)) {}
  std::string next() override { return distractor_(); }
  std::string separator() const override { return "\n"; }

 private:
  std::function<std::string()> distractor_;
};

class Generated final : public Haystack {
 public:
  explicit Generated(std::uint64_t seed) : random_(seed) {}
  std::string next() override { return random_sentence(random_); }
  std::string separator() const override { return " "; }

 private:
  Random random_;
};

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v';
}

std::string with_single_spaces(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (!is_space(c)) {
      out.push_back(c);
    } else if (!out.empty() && out.back() != ' ') {
      out.push_back(' ');
    }
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::vector<std::filesystem::path> text_files(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  std::filesystem::directory_iterator entries(directory, error);
  if (error) {
    throw FileError(fmt::format("{}: cannot be listed: {}", directory.string(), error.message()));
  }
  for (const auto& entry : entries) {
    const auto extension = entry.path().extension();
    if (entry.is_regular_file(error) && (extension == ".txt" || extension == ".md")) {
      files.push_back(entry.path());
    }
  }
  if (files.empty()) {
    throw FileError(
        fmt::format("{}: holds no *.txt or *.md file to make a haystack of", directory.string()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

class Texts final : public Haystack {
 public:
  explicit Texts(const std::filesystem::path& directory) {
    for (const auto& file : text_files(directory)) text_ += read_file(file) + ' ';
    text_ = with_single_spaces(text_);
    if (text_.empty()) {
      throw FileError(fmt::format("{}: its text files are all empty", directory.string()));
    }
  }

  std::string next() override {
    if (at_ >= text_.size()) at_ = 0;
    const std::size_t end = sentence_end();
    std::string sentence = text_.substr(at_, end - at_);
    at_ = end + 1;  // past the space
    return sentence;
  }
  std::string separator() const override { return " "; }

 private:
  // Where the sentence at at_ ends: behind ".", "!" or "?" (and closing quotes) before a space.
  // Text without full stops is cut at a space, so that a needle can go anywhere.
  std::size_t sentence_end() const {
    constexpr std::size_t longest = 600;
    std::size_t last_space = std::string::npos;
    for (std::size_t i = at_; i < text_.size(); ++i) {
      if (text_[i] != ' ') continue;
      std::size_t before = i - 1;
      while (before > at_ &&
             (text_[before] == '"' || text_[before] == '\'' || text_[before] == ')')) {
        --before;
      }
      const char c = text_[before];
      if (c == '.' || c == '!' || c == '?') return i;
      if (i - at_ > longest) return last_space == std::string::npos ? i : last_space;
      last_space = i;
    }
    return text_.size();
  }

  std::string text_;
  std::size_t at_ = 0;
};

}  // namespace

std::span<const std::string> haystack_names() {
  static const std::array<std::string, 3> names = {"noise", "needles", "generated"};
  return names;
}

void check_haystack(const std::string& name) {
  const std::span<const std::string> names = haystack_names();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) {
    text_files(name);
    return;
  }
  throw InvalidArgument(
      fmt::format("'{}' is neither noise, needles nor generated, nor a directory", name));
}

std::unique_ptr<Haystack> make_haystack(const std::string& name, std::uint64_t seed,
                                        std::function<std::string()> distractor) {
  check_haystack(name);
  if (name == "noise") return std::make_unique<Noise>();
  if (name == "needles") return std::make_unique<Needles>(std::move(distractor));
  if (name == "generated") return std::make_unique<Generated>(seed);
  return std::make_unique<Texts>(name);
}

}  // namespace topkv
