#include "src/cli/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "src/cli/files.h"
#include "topkv/error.h"

namespace topkv::cli {
namespace {

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

RunDirectory::RunDirectory(std::filesystem::path directory, const Json& configuration, bool fresh)
    : directory_(std::move(directory)) {
  std::error_code error;
  std::filesystem::create_directories(directory_, error);
  if (error || !std::filesystem::is_directory(directory_)) {
    fail(directory_,
         fmt::format("cannot be made a directory: {}", error ? error.message() : "it is a file"));
  }
  const auto path = file("cells.jsonl");
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) fail(path, fmt::format("cannot be written: {}", std::strerror(errno)));
  try {
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
      fail(directory_, "another topkv is writing there; wait for it or use -o");
    }
    if (fresh) {
      for (const char* name : {"run.json", "summary.csv", "heatmap.svg"}) {
        std::filesystem::remove(file(name), error);
      }
      if (::ftruncate(file_, 0) != 0) fail(path, std::strerror(errno));
    }
    load_cells();
    const auto run = file("run.json");
    if (cells_.empty()) {  // nothing that another configuration could be mixed with
      write_file(run, configuration.dump(2) + "\n");
    } else if (std::filesystem::exists(run)) {
      const Json there = Json::parse(read_file(run), nullptr, false);
      if (!there.is_object()) fail(run, fmt::format("is not a run's configuration; {}", remedy));
      const std::string differ = differences(there, configuration);
      if (!differ.empty()) {
        fail(directory_, fmt::format("holds a run with other settings ({}); {}", differ, remedy));
      }
    } else {
      fail(directory_, fmt::format("holds cells.jsonl but no run.json; {}", remedy));
    }
  } catch (...) {
    ::close(file_);
    throw;
  }
}

RunDirectory::~RunDirectory() { ::close(file_); }

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
  if (begin < text.size() && ::ftruncate(file_, static_cast<off_t>(begin)) != 0) {
    fail(path, fmt::format("its incomplete last line cannot be cut off: {}", std::strerror(errno)));
  }
}

bool RunDirectory::has(std::int64_t length, double depth, const std::string& index) const {
  return std::any_of(cells_.begin(), cells_.end(), [&](const Cell& cell) {
    return cell.length == length && cell.depth == depth && cell.index == index;
  });
}

void RunDirectory::append(const Cell& cell) {
  // Answers are text the model made up: whatever is not UTF-8 is replaced.
  const std::string line =
      to_json(cell).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  write_all(file_, line, file("cells.jsonl"));
  cells_.push_back(cell);
}

}  // namespace topkv::cli
