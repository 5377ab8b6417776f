#include "topkv/find_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "src/core/format/gguf_file.h"
#include "src/core/format/json_file.h"
#include "src/core/io/files.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// One side of the slash in a name, or a part of a revision: what Hugging Face allows. No "..", for
/// these become names of folders.
bool is_part(std::string_view text) {
  constexpr std::size_t longest = 96;
  const auto allowed = [](char c) {
    return is_letter_or_digit(c) || c == '-' || c == '_' || c == '.';
  };
  const auto outside = [](char c) { return c == '-' || c == '.'; };
  return !text.empty() && text.size() <= longest && std::ranges::all_of(text, allowed) &&
         !outside(text.front()) && !outside(text.back()) &&
         text.find("--") == std::string_view::npos && text.find("..") == std::string_view::npos;
}

/// "refs/pr/1"
bool is_revision(std::string_view text) {
  while (true) {
    const std::size_t slash = text.find('/');
    if (!is_part(text.substr(0, slash))) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

struct Name {
  std::string organisation;
  std::string model;
  std::string revision;  // empty: main

  /// What a shell may be given.
  std::string download() const {
    return fmt::format("hf download {}/{}{}{}", organisation, model,
                       revision.empty() ? "" : " --revision ", revision);
  }
};

bool parse(std::string_view text, Name& name) {
  const std::size_t at = text.find('@');
  const std::string_view both = text.substr(0, at);
  const std::size_t slash = both.find('/');
  if (slash == std::string_view::npos) return false;
  name.organisation = both.substr(0, slash);
  name.model = both.substr(slash + 1);
  if (at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    if (!is_revision(name.revision)) return false;
  }
  return is_part(name.organisation) && is_part(name.model);
}

/// Empty where the variable is not set or empty.
fs::path from_environment(const char* variable) {
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): see the header
  const std::string text = value == nullptr ? "" : value;
  if (text != "~" && !text.starts_with("~/")) return text;
  const char* home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe)
  return home == nullptr ? fs::path(text)
                         : fs::path(home) / text.substr(std::min<std::size_t>(2, text.size()));
}

fs::path cache_folder() {
  for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (fs::path folder = from_environment(variable); !folder.empty()) return folder;
  }
  if (const fs::path home = from_environment("HF_HOME"); !home.empty()) return home / "hub";
  fs::path cache = from_environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = from_environment("HOME") / ".cache";
  return cache / "huggingface" / "hub";
}

/// A snapshot that is there, and whether all of it is.
class Snapshot {
 public:
  Snapshot(const Name& name, fs::path folder) : name_(name), folder_(std::move(folder)) {}

  fs::path check(ModelFiles files) const {
    check_entries();
    if (!is_file("config.json")) {
      const std::vector<fs::path> models = gguf_models();
      if (models.size() == 1) return models.front();
      if (models.size() > 1) {
        throw FileError(
            fmt::format("{}/{}: has {} *.gguf files and no config.json; expected one model: give "
                        "the path of one "
                        "of them, such as {}",
                        name_.organisation, name_.model, models.size(), path_text(models.front())));
      }
      lacks("config.json");
    }
    if (files == ModelFiles::all) check_weights();
    return folder_;
  }

 private:
  [[noreturn]] void lacks(std::string_view what) const {
    throw FileError(fmt::format("{}: lacks {}; expected a whole model: `{}` completes it",
                                path_text(folder_), printable(what), name_.download()));
  }

  bool is_file(const fs::path& file) const {
    std::error_code error;
    return fs::is_regular_file(folder_ / file, error);
  }

  static std::vector<fs::path> sorted_entries(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> all;
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      all.push_back(entry->path());
    }
    if (error) {
      throw FileError(fmt::format("{}: cannot be read: {}", path_text(folder), error.message()));
    }
    std::ranges::sort(all);
    return all;
  }

  /// Throws for a link to a file that is not there: a download that was stopped, or a cache that
  /// was cleaned by hand.
  void check_entries() const {
    std::error_code error;
    for (const fs::path& file : sorted_entries(folder_)) {
      if (!fs::exists(file, error)) lacks(file.filename().string());
    }
  }

  /// The GGUF files of models, here and in folders within (a type of quantisation each): of a model
  /// in several parts the first, and no encoders of images (llama.cpp's mmproj-*.gguf).
  std::vector<fs::path> gguf_models() const {
    std::error_code error;
    std::vector<fs::path> models;
    const auto add = [&](const fs::path& file) {
      if (file.extension() != ".gguf" || file.filename().string().starts_with("mmproj")) return;
      const auto part = gguf_part_name(file);
      if (part && part->number > 1 && fs::exists(part->path_of(1), error)) return;
      models.push_back(file);
    };
    for (const fs::path& entry : sorted_entries(folder_)) {
      if (fs::is_directory(entry, error)) {
        for (const fs::path& file : sorted_entries(entry)) add(file);
      } else {
        add(entry);
      }
    }
    return models;
  }

  void check_weights() const {
    constexpr const char* index = "model.safetensors.index.json";
    if (is_file(index)) {
      const nlohmann::json json = read_json_file(folder_ / index);
      const JsonObject object(json, folder_ / index);
      const nlohmann::json* files = object.find("weight_map");
      if (files == nullptr || !files->is_object()) object.fail("weight_map", "an object");
      std::string last;
      for (const auto& [tensor, file] : files->items()) {
        if (!file.is_string() || file == last) continue;  // loading says what is wrong with it
        last = file.get<std::string>();
        if (fs::path(last).filename() == last && !is_file(last)) lacks(last);
      }
      return;
    }
    if (!is_file("model.safetensors")) lacks("model.safetensors");
  }

  const Name& name_;
  fs::path folder_;
};

/// The commit that a branch or tag is at, as the cache knows it; the revision itself where that is
/// a commit there.
std::string commit_of(const Name& name, const fs::path& model) {
  const std::string revision = name.revision.empty() ? "main" : name.revision;
  std::error_code error;
  const fs::path reference = model / "refs" / revision;
  if (fs::is_regular_file(reference, error)) {
    constexpr std::int64_t longest = 4096;  // a commit has 40 letters
    std::string commit = read_regular_file(reference, longest);
    while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
    if (commit.size() <= 64 && !commit.empty() && std::ranges::all_of(commit, is_letter_or_digit)) {
      return commit;
    }
    throw FileError(fmt::format("{}: does not hold a commit's name; `{}` repairs it",
                                path_text(reference), name.download()));
  }
  if (std::ranges::all_of(revision, is_letter_or_digit) &&
      fs::is_directory(model / "snapshots" / revision, error)) {
    return revision;
  }
  throw FileError(fmt::format("{}: is missing, and it names the commit of {}; `{}` downloads it",
                              path_text(reference), revision, name.download()));
}

}  // namespace

fs::path find_model(std::string_view model, ModelFiles files) {
  fs::path path(model);
  std::error_code error;
  Name name;
  if (fs::exists(path, error) || !parse(model, name)) return path;
  const fs::path cache = cache_folder();
  const fs::path folder = cache / fmt::format("models--{}--{}", name.organisation, name.model);
  if (!fs::is_directory(folder, error)) {
    throw FileError(fmt::format(
        "{}: no such file or folder, and no model of that name in {}; `{}` downloads it", model,
        path_text(cache), name.download()));
  }
  const fs::path snapshot = folder / "snapshots" / commit_of(name, folder);
  if (!fs::is_directory(snapshot, error)) {
    throw FileError(
        fmt::format("{}: is missing; `{}` downloads it", path_text(snapshot), name.download()));
  }
  return Snapshot(name, snapshot).check(files);
}

}  // namespace topkv
