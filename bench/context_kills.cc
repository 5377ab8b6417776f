// A process that does nothing but save contexts is killed, again and again, at random times: each
// time the file is the one that was there or the one that was being written, whole, and the next
// save leaves nothing beside it.
//   context_kills_bench [kills] [folder]
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bench/random_context.h"
#include "src/core/io/checksum.h"
#include "src/core/io/files.h"
#include "src/core/io/mapped_file.h"
#include "topkv/context_file.h"

namespace topkv {
namespace {

namespace fs = std::filesystem;

/// What the process that saves tells, in memory that outlives it.
struct Told {
  std::atomic<std::int64_t> begun;  // saves
  std::atomic<std::int64_t> ended;
};

std::shared_ptr<const Context> context_of(std::int64_t tokens) {
  return random_context({.layers = 4, .q_heads = 8, .kv_heads = 4, .head_dim = 128}, tokens,
                        static_cast<unsigned>(tokens));
}

std::uint64_t checksum_of(const fs::path& path) {
  const MappedFile file = MappedFile::open(path);
  return checksum(file.bytes().data(), std::ssize(file.bytes()));
}

Told* told_in(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDWR);
  void* memory = ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (file < 0 || memory == MAP_FAILED) throw std::runtime_error("cannot map " + path.string());
  ::close(file);
  return static_cast<Told*>(memory);
}

/// Saves one context after the other under the same name, for ever.
[[noreturn]] void save_for_ever(const fs::path& folder) {
  const auto a = load_context(folder / "a.tkv").context;
  const auto b = load_context(folder / "b.tkv").context;
  Told* told = told_in(folder / "told");
  for (;;) {
    for (const auto& context : {a, b}) {
      ++told->begun;
      save_context(*context, folder / "c.tkv");
      ++told->ended;
    }
  }
}

int run(int kills, const fs::path& folder) {
  fs::create_directories(folder);
  save_context(*context_of(6000), folder / "a.tkv");
  save_context(*context_of(4000), folder / "b.tkv");
  fs::copy_file(folder / "a.tkv", folder / "c.tkv", fs::copy_options::overwrite_existing);
  const std::map<std::uint64_t, std::string> whole = {{checksum_of(folder / "a.tkv"), "a"},
                                                      {checksum_of(folder / "b.tkv"), "b"}};
  const auto a = load_context(folder / "a.tkv").context;
  // Some are killed in their first save, some in a later one.
  const auto begun = std::chrono::steady_clock::now();
  save_context(*a, folder / "c.tkv");
  const std::chrono::duration<double, std::micro> save = std::chrono::steady_clock::now() - begun;
  const auto longest = static_cast<std::uint64_t>(3 * save.count()) + 1;
  std::ofstream(folder / "told") << std::string(sizeof(Told), '\0');
  Told* told = told_in(folder / "told");
  std::mt19937_64 random(1);
  std::map<std::string, int> found;
  int during = 0;
  int with_rubbish = 0;
  int failures = 0;
  std::int64_t saves = 0;
  const auto parts = [&] {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(folder))
      count += entry.path().extension() == ".topkv-part" ? 1 : 0;
    return count;
  };
  for (int i = 0; i < kills; ++i) {
    told->begun = 0;
    told->ended = 0;
    const std::string in = folder.string();
    const char* const arguments[] = {"/proc/self/exe", "save", in.c_str(), nullptr};
    pid_t child = 0;
    if (::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr,
                      const_cast<char* const*>(arguments), environ) != 0)
      throw std::runtime_error("cannot start a process");
    while (told->begun == 0) {
      if (::waitpid(child, nullptr, WNOHANG) != 0) throw std::runtime_error("the process ended");
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % longest));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    during += told->begun > told->ended ? 1 : 0;
    saves += told->ended;
    with_rubbish += parts() > 0 ? 1 : 0;
    try {
      verify_context(folder / "c.tkv");
      const auto name = whole.find(checksum_of(folder / "c.tkv"));
      if (name == whole.end()) throw std::runtime_error("other bytes than were saved");
      ++found[name->second];
      if (i % 10 == 9) {  // (else the next process' save comes next)
        save_context(*a, folder / "c.tkv");
        if (parts() != 0) throw std::runtime_error("a save left something beside its file");
      }
    } catch (const std::exception& error) {
      ++failures;
      fmt::print("kill {}: {}\n", i, error.what());
    }
  }
  save_context(*a, folder / "c.tkv");
  failures += parts() == 0 ? 0 : 1;
  fmt::print(
      "{} kills, {} of them during a save; {} saves were whole before; {} left a part\n"
      "found whole: {} the larger context, {} the smaller; failures: {}\n",
      kills, during, saves, with_rubbish, found["a"], found["b"], failures);
  fs::remove_all(folder);
  return failures == 0 && during > 0 ? 0 : 1;
}

}  // namespace
}  // namespace topkv

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "save") topkv::save_for_ever(arguments[2]);
  const int kills = count > 1 ? std::atoi(arguments[1]) : 20;
  const std::filesystem::path folder =
      count > 2 ? arguments[2]
                : std::filesystem::temp_directory_path() / fmt::format("kills-{}", ::getpid());
  return topkv::run(kills, folder);
}
