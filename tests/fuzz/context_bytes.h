// Builds context files from the format in docs/reference/context-files.md, with valid checksums, so
// that fuzzing reaches the code behind them. Shares only the checksum with the library.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/io/checksum.h"

namespace topkv::fuzz {

inline constexpr std::size_t page = 4096;
inline constexpr std::size_t block = std::size_t{4} << 20;

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

template <class T>
void put(std::string& bytes, std::size_t at, T number) {
  std::memcpy(bytes.data() + at, &number, sizeof number);
}

inline std::uint64_t sum_of(std::string_view bytes) {
  return checksum(bytes.data(), std::ssize(bytes));
}

/// Gives a file's bytes the checksums that belong to them, and its header the file's size, as far
/// as its table says where they are.
inline void mend_checksums(std::string& file) {
  if (file.size() < 64) return;
  put(file, 16, std::uint64_t{file.size()});
  const auto sections = number_at<std::uint64_t>(file, 24);
  const auto checksums = number_at<std::uint64_t>(file, 32);
  const std::size_t room = file.size() - 64;
  if (sections <= room / 48 && checksums <= (room - sections * 48) / 8) {
    const std::size_t sums = 64 + sections * 48;
    for (std::size_t i = 0; i < sections; ++i) {
      const std::size_t entry = 64 + i * 48;
      const auto at = number_at<std::uint64_t>(file, entry + 24);
      const auto bytes = number_at<std::uint64_t>(file, entry + 32);
      const auto first = number_at<std::uint64_t>(file, entry + 40);
      if (at > file.size() || bytes > file.size() - at) continue;
      for (std::size_t b = 0; b * block < bytes; ++b) {
        if (first > checksums || b >= checksums - first) break;
        const auto some =
            std::string_view(file).substr(at + b * block, std::min(block, bytes - b * block));
        put(file, sums + (first + b) * 8, sum_of(some));
      }
    }
    put(file, 40, sum_of(std::string_view(file).substr(64, sections * 48 + checksums * 8)));
  }
  put(file, 56, sum_of(std::string_view(file).substr(0, 56)));
}

/// A file of sections, one behind the other, each given as: kind, whether it is required, and
/// index, a byte each; layer and KV head, four bits each; how many bytes it has, in four bytes of
/// which the first does not count; and these bytes.
inline std::string file_of_sections(std::string_view list) {
  struct Part {
    std::string_view head, bytes;
  };
  constexpr std::size_t head_bytes = 8;
  std::vector<Part> parts;
  while (list.size() >= head_bytes && parts.size() < 64) {
    const auto size = number_at<std::uint32_t>(list, 4) >> 8U;
    const std::string_view bytes = list.substr(head_bytes).substr(0, size);
    parts.push_back({list.substr(0, head_bytes), bytes});
    list.remove_prefix(head_bytes + bytes.size());
  }
  const auto whole = [](std::size_t bytes) { return (bytes + page - 1) / page * page; };
  std::string file(whole(64 + parts.size() * 56), '\0');
  std::size_t sums = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string_view head = parts[i].head;
    const std::string_view bytes = parts[i].bytes;
    const std::size_t entry = 64 + i * 48;
    const auto byte = [&](std::size_t at) {
      return std::uint32_t{static_cast<std::uint8_t>(head[at])};
    };
    put(file, entry, byte(0));
    put(file, entry + 4, byte(1) & 1U);
    put(file, entry + 8, byte(2));
    put(file, entry + 12, byte(3) & 15U);
    put(file, entry + 16, byte(3) >> 4U);
    put(file, entry + 24, std::uint64_t{file.size()});
    put(file, entry + 32, std::uint64_t{bytes.size()});
    put(file, entry + 40, std::uint64_t{sums});
    sums += (bytes.size() + block - 1) / block;
    file += bytes;
    file.resize(whole(file.size()));
  }
  constexpr unsigned char magic[8] = {0x8a, 'T', 'K', 'V', '\r', '\n', 0x1a, '\n'};
  std::memcpy(file.data(), magic, sizeof magic);
  put(file, 8, std::uint32_t{1});
  put(file, 12, std::uint32_t{64});
  put(file, 24, std::uint64_t{parts.size()});
  put(file, 32, std::uint64_t{sums});
  mend_checksums(file);
  return file;
}

}  // namespace topkv::fuzz
