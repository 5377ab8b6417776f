#include "src/cli/run_directory.h"

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

#include "src/core/files.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

// Lists that may grow in a directory: each length and index has cells of its own.
constexpr const char* growing_members[] = {"lengths", "kv_index"};

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

std::string spelled_in(const std::vector<std::string>& specs, const std::string& spec) {
  const auto same = std::find_if(specs.begin(), specs.end(), [&](const std::string& other) {
    return other == spec || full_spec(other) == full_spec(spec);
  });
  return same == specs.end() ? spec : *same;
}

std::filesystem::path default_directory(const Json& configuration) {
  std::filesystem::path path(configuration.at("model").get<std::string>());
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (!plain && c != '.' && c != '_') c = '-';
  }
  Json settings = configuration;
  for (const char* growing : growing_members) settings.erase(growing);
  std::uint32_t digest = 2166136261U;  // FNV-1a
  for (const char c : settings.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    digest = (digest ^ static_cast<unsigned char>(c)) * 16777619U;
  }
  return std::filesystem::path("out") / fmt::format("needle-{}-{:08x}", name, digest);
}

RunDirectory::RunDirectory(std::filesystem::path directory, const Json& configuration, bool fresh)
    : directory_(std::move(directory)), configuration_(configuration), fresh_(fresh) {
  try {
    make_directory();
    open_cells();
    if (fresh_) return;
    load_cells();
    merge_configuration();
  } catch (...) {
    clean_up();
    throw;
  }
}

RunDirectory::~RunDirectory() { clean_up(); }

void RunDirectory::make_directory() {
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

void RunDirectory::open_cells() {
  const auto path = file("cells.jsonl");
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

void RunDirectory::load_cells() {
  const auto path = file("cells.jsonl");
  const std::string text = read_file(path);
  std::size_t begin = 0;
  for (std::int64_t line = 1; begin < text.size(); ++line) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // incomplete: the run was killed while writing it
    try {
      cells_.push_back(cell_from_json(Json::parse(text.substr(begin, end - begin))));
    } catch (const Json::exception&) {
      fail(path, fmt::format("line {} is not a cell of this version; {}", line, remedy));
    }
    begin = end + 1;
  }
  kept_bytes_ = static_cast<std::int64_t>(begin);
}

void RunDirectory::merge_configuration() {
  if (cells_.empty()) return;  // nothing that another configuration could be mixed with
  const auto run = file("run.json");
  std::error_code error;
  if (std::filesystem::status(run, error).type() == std::filesystem::file_type::not_found) {
    fail(directory_, fmt::format("holds cells.jsonl but no run.json; {}", remedy));
  }
  const Json there = Json::parse(read_file(run), nullptr, false);
  if (!there.is_object()) fail(run, fmt::format("is not a run's configuration; {}", remedy));
  Json merged = configuration_;
  for (const char* member : growing_members) {
    if (there.contains(member) && merged.contains(member)) {
      merged[member] = there.at(member);
    }
  }
  const std::string differ = differences(there, merged);
  if (!differ.empty()) {
    fail(directory_, fmt::format("holds a run with other settings ({}); {}", differ, remedy));
  }
  try {
    if (merged.contains("lengths")) {
      auto lengths = merged.at("lengths").get<std::vector<std::int64_t>>();
      for (const Json& length : configuration_.at("lengths")) lengths.push_back(length);
      std::sort(lengths.begin(), lengths.end());
      lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
      merged["lengths"] = lengths;
    }
    if (merged.contains("kv_index")) {
      auto specs = merged.at("kv_index").get<std::vector<std::string>>();
      for (const std::string spec : configuration_.at("kv_index")) {
        if (spelled_in(specs, spec) == spec &&
            std::find(specs.begin(), specs.end(), spec) == specs.end()) {
          specs.push_back(spec);
        }
      }
      merged["kv_index"] = specs;
    }
  } catch (const Json::exception&) {
    fail(run, fmt::format("is not a run's configuration; {}", remedy));
  }
  configuration_ = std::move(merged);
}

// The order matters to a run that is killed here: with cells or without, run.json explains them.
void RunDirectory::begin() {
  const auto path = file("cells.jsonl");
  std::error_code error;
  if (fresh_) {
    for (const char* name : {"summary.csv", "heatmap.svg"}) {
      std::filesystem::remove(file(name), error);
    }
  }
  if (::ftruncate(file_, static_cast<off_t>(kept_bytes_)) != 0) {
    fail(path, fmt::format("cannot be shortened: {}", std::strerror(errno)));
  }
  write_file(file("run.json"), configuration_.dump(2) + "\n");
  begun_ = true;
}

void RunDirectory::clean_up() noexcept {
  std::error_code error;
  if (!begun_) {
    if (made_file_) std::filesystem::remove(file("cells.jsonl"), error);
    // Only empty ones go.
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) ::rmdir(path->c_str());
  }
  if (file_ >= 0) ::close(file_);
  file_ = -1;
}

bool RunDirectory::has(std::int64_t length, double depth, const std::string& index) const {
  return std::any_of(cells_.begin(), cells_.end(), [&](const Cell& cell) {
    return cell.length == length && cell.depth == depth && cell.index == index;
  });
}

void RunDirectory::append(const Cell& cell) {
  if (!begun_) begin();
  // Answers are text the model made up: whatever is not UTF-8 is replaced.
  const std::string line =
      to_json(cell).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  write_all(file_, line, file("cells.jsonl"));
  cells_.push_back(cell);
}

}  // namespace topkv::cli
