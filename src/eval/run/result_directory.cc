#include "src/eval/run/result_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/core/io/files.h"
#include "topkv/error.h"

namespace topkv {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* remedy = "use --fresh to start over or -o for another directory";

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw FileError(fmt::format("{}: {}", path.string(), what));
}

std::string brief(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "…";
  return text;
}

void write_all(int file, std::string_view bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(file, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

}  // namespace

std::string differences(const Json& there, const Json& here) {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& a, const std::string& b) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{} {} there, {} here", name, a, b);
  };
  for (const auto& [name, value] : here.items()) {
    if (!there.contains(name)) {
      add(name, "not set", brief(value));
    } else if (there.at(name) != value) {
      add(name, brief(there.at(name)), brief(value));
    }
  }
  for (const auto& [name, value] : there.items()) {
    if (!here.contains(name)) add(name, brief(value), "not set");
  }
  return text;
}

std::filesystem::path default_result_directory(std::string_view prefix, const Json& configuration,
                                               const std::vector<std::string>& growing) {
  std::filesystem::path path(configuration.at("model").get<std::string>());
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '.' && c != '_') c = '-';
  }
  Json settings = configuration;
  for (const std::string& member : growing) settings.erase(member);
  std::uint32_t digest = 2166136261U;  // FNV-1a
  for (const char c : settings.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    digest = (digest ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return std::filesystem::path("out") / fmt::format("{}-{}-{:08x}", prefix, name, digest);
}

ResultDirectory::ResultDirectory(std::filesystem::path directory, Json configuration, bool fresh,
                                 ResultLayout layout)
    : directory_(std::move(directory)),
      configuration_(std::move(configuration)),
      fresh_(fresh),
      layout_(std::move(layout)) {
  try {
    make_directory();
    open_lines();
    if (fresh_) return;
    load_lines();
    merge_configuration();
  } catch (...) {
    clean_up();
    throw;
  }
}

ResultDirectory::~ResultDirectory() { clean_up(); }

void ResultDirectory::make_directory() {
  std::error_code error;
  std::vector<std::filesystem::path> missing;  // innermost first
  for (auto path = std::filesystem::absolute(directory_, error).lexically_normal();
       !path.empty() && !std::filesystem::exists(path, error) && path != path.parent_path();
       path = path.parent_path()) {
    if (path.has_filename()) missing.push_back(path);
  }
  std::filesystem::create_directories(directory_, error);
  made_.assign(missing.rbegin(), missing.rend());
  std::error_code unknown;
  if (error || !std::filesystem::is_directory(directory_, unknown)) {
    fail(directory_, fmt::format("cannot be made a directory: {}; use -o for another place",
                                 error ? error.message() : "it is a file"));
  }
}

void ResultDirectory::open_lines() {
  const auto path = file(layout_.lines);
  std::error_code error;
  made_file_ = !std::filesystem::exists(path, error);
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  struct stat locked = {};
  struct stat there = {};
  // A run that ends takes an empty file away: what was locked must be what is there.
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0 || ::fstat(file_, &locked) != 0 ||
      ::stat(path.c_str(), &there) != 0 || locked.st_ino != there.st_ino) {
    made_file_ = false;  // the other one's
    fail(directory_, "another topkv is writing there; wait for it or use -o");
  }
}

void ResultDirectory::load_lines() {
  const auto path = file(layout_.lines);
  const std::string text = read_file(path);
  std::size_t begin = 0;
  for (std::int64_t line = 1; begin < text.size(); ++line) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // incomplete: the run was killed while writing it
    try {
      Json parsed = Json::parse(text.substr(begin, end - begin));
      layout_.check(parsed);
      lines_.push_back(std::move(parsed));
    } catch (const Json::exception&) {
      fail(path,
           fmt::format("line {} is not {} of this version; {}", line, layout_.line_is, remedy));
    }
    begin = end + 1;
  }
  kept_bytes_ = static_cast<std::int64_t>(begin);
}

void ResultDirectory::merge_configuration() {
  if (lines_.empty()) return;  // nothing that another configuration could be mixed with
  const auto run = file("run.json");
  std::error_code error;
  if (std::filesystem::status(run, error).type() == std::filesystem::file_type::not_found) {
    fail(directory_, fmt::format("holds {} but no run.json; {}", layout_.lines, remedy));
  }
  const Json there = Json::parse(read_file(run), nullptr, false);
  if (!there.is_object()) fail(run, fmt::format("is not a run's configuration; {}", remedy));
  // Whatever may grow is no difference.
  Json compared = configuration_;
  for (const std::string& member : layout_.growing) {
    if (there.contains(member) && compared.contains(member)) compared[member] = there.at(member);
  }
  const std::string differ = differences(there, compared);
  if (!differ.empty()) {
    fail(directory_, fmt::format("holds a run with other settings ({}); {}", differ, remedy));
  }
  try {
    configuration_ = layout_.merge(there, configuration_);
  } catch (const Json::exception&) {
    fail(run, fmt::format("is not a run's configuration; {}", remedy));
  }
}

// The order matters to a run that is killed here: with lines or without, run.json explains them.
void ResultDirectory::begin() {
  const auto path = file(layout_.lines);
  std::error_code error;
  if (fresh_) {
    for (const std::string& name : layout_.made) std::filesystem::remove(file(name), error);
  }
  if (::ftruncate(file_, static_cast<off_t>(kept_bytes_)) != 0) {
    fail(path, fmt::format("cannot be shortened: {}", std::strerror(errno)));
  }
  write_file(file("run.json"), configuration_.dump(2) + "\n");
  begun_ = true;
}

void ResultDirectory::clean_up() noexcept {
  std::error_code error;
  if (!begun_) {
    if (made_file_) std::filesystem::remove(file(layout_.lines), error);
    // Only empty ones go.
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) ::rmdir(path->c_str());
  }
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

void ResultDirectory::append(const Json& result) {
  if (!begun_) begin();
  // Answers are text the model made up: whatever is not UTF-8 is replaced.
  const std::string line = result.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  write_all(file_, line, file(layout_.lines));
}

}  // namespace topkv
