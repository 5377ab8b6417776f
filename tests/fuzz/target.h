// What the targets have in common. A target is one parser behind FUZZ_TARGET: it is given any
// bytes, and either reads them or throws an exception of include/topkv/error.h that says why, on
// one line. All else ends the process: another exception, a signal, a sanitizer's report.
#pragma once

#include <oneapi/tbb/global_control.h>
#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>

#include "src/core/text/utf8.h"
#include "topkv/error.h"

// FUZZ_TARGET(name)(const std::uint8_t* data, std::size_t size) { … return 0; } in name.cc: with
// libFuzzer a program's only target, else one of all that replay.cc knows by their names.
#ifdef TOPKV_LIBFUZZER
#define FUZZ_TARGET(name) extern "C" int LLVMFuzzerTestOneInput
#else
#define FUZZ_TARGET(name)                                                                 \
  int fuzz_##name(const std::uint8_t* data, std::size_t size);                            \
  const bool is_known_##name = topkv::fuzz::targets().emplace(#name, fuzz_##name).second; \
  int fuzz_##name
#endif

namespace topkv::fuzz {

using Target = int (*)(const std::uint8_t* data, std::size_t size);

/// Returns the targets of this program by name.
inline std::map<std::string, Target, std::less<>>& targets() {
  static std::map<std::string, Target, std::less<>> known;
  return known;
}

/// Threads would only make what is found hard to find again.
inline const oneapi::tbb::global_control one_thread(
    oneapi::tbb::global_control::max_allowed_parallelism, 1);

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// What holds for a parser, whatever it was given.
inline void require(bool holds, std::string_view what, std::string_view found = {}) {
  if (holds) return;
  const std::string text = "fuzz: " + std::string(what) + ": " + std::string(found) + "\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::abort();
}

/// Whether a call may be refused memory that is not there. Elsewhere that is a fault: inputs are
/// small, and what they may take is bounded by them.
enum class Memory { bounded, may_lack };

/// beginning: of what errors about a file say, whatever their type.
inline void check_message(const Error& error, std::string_view beginning, Memory memory) {
  const std::string_view text = error.what();
  require(!text.empty(), "an error without a message");
  require(text.size() < 4096, "a message that is too long", text);
  for (const char c : text)
    require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "a message of several lines", text);
  require(valid_utf8_bytes(text) == text.size(), "a message that is not UTF-8", text);
  if (dynamic_cast<const OutOfMemory*>(&error) != nullptr)
    return require(memory == Memory::may_lack, "memory that the input does not bound", text);
  require(text.starts_with(beginning), "a message that does not begin with the file", text);
}

/// Calls of accepts() that returned, those within others left out: replay.cc asks for some.
inline std::int64_t accepted = 0;
inline std::int64_t within = 0;

/// Whether the call returned. beginning, memory: of check_message.
template <class Call>
bool accepts(const Call& call, std::string_view beginning = {}, Memory memory = Memory::bounded) {
  struct Within {
    Within() { ++within; }
    ~Within() { --within; }
  };
  try {
    const Within this_one;
    call();
  } catch (const Error& error) {
    check_message(error, beginning, memory);
    return false;
  }
  if (within == 0) ++accepted;
  return true;
}

/// A folder of this process, in memory where the system has such a place.
class Folder {
 public:
  Folder() {
    std::error_code error;
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        ((std::filesystem::is_directory(memory, error) ? memory
                                                       : std::filesystem::temp_directory_path()) /
         "topkv-fuzz-XXXXXX")
            .string();
    require(::mkdtemp(name.data()) != nullptr, "no folder can be made", name);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;  // it removes the folder
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string text() const { return path_.string(); }

  std::filesystem::path write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream stream(file, std::ios::binary | std::ios::trunc);
    stream.write(content.data(), static_cast<std::streamsize>(content.size()));
    stream.close();
    require(!stream.fail(), "a file cannot be written", file.string());
    return file;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace topkv::fuzz
