#include "src/context/file/file_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/core/format/placeholder.h"
#include "src/core/io/checksum.h"
#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {
namespace {

static_assert(std::endian::native == std::endian::little);

// In the manner of PNG's: a copy that changed line ends, or lost the eighth bit, is told.
constexpr unsigned char magic[8] = {0x8a, 'T', 'K', 'V', '\r', '\n', 0x1a, '\n'};

struct Header {
  unsigned char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint64_t file_bytes;
  std::uint64_t sections;
  std::uint64_t checksums;
  std::uint64_t table_checksum;  // of all between the header and the first section
  std::uint64_t unused;          // 0
  std::uint64_t checksum;        // of the header before it
};
static_assert(sizeof(Header) == FileTable::header_bytes);

struct Entry {
  std::uint32_t kind;
  std::uint32_t flags;  // 1: required
  std::uint32_t index;
  std::uint32_t layer;
  std::uint32_t kv_head;
  std::uint32_t unused;  // 0
  std::uint64_t at;
  std::uint64_t bytes;
  std::uint64_t first_checksum;
};
static_assert(sizeof(Entry) == FileTable::section_bytes);

std::uint64_t header_checksum(const Header& header) {
  return checksum(&header, offsetof(Header, checksum));
}

[[noreturn]] void fail(const ReadableFile& file, const std::string& what) {
  throw FileError(fmt::format("{}: {}", path_text(file.path()), what));
}

/// Of a file that may well be whole.
[[noreturn]] void unsupported(const ReadableFile& file, const std::string& what) {
  throw Unsupported(fmt::format("{}: {}", path_text(file.path()), what));
}

Header read_header(const ReadableFile& file) {
  Header header;
  refuse_placeholder(file.path());
  if (file.bytes() < FileTable::header_bytes)
    fail(file, fmt::format("is not a context file: it has {} bytes, and a header alone has {}; "
                           "expected a file that topkv prefill or Context.save wrote",
                           file.bytes(), FileTable::header_bytes));
  file.read(&header, sizeof header, 0);
  if (std::memcmp(header.magic, magic, sizeof magic) != 0)
    fail(file,
         "is not a context file: its first bytes are not those of one; expected a file that topkv "
         "prefill or Context.save wrote");
  if (header.checksum != header_checksum(header))
    fail(file, fmt::format("its header is damaged: it has the checksum {:016x}; expected {:016x}",
                           header.checksum, header_checksum(header)));
  if (header.version < 1 || header.version > FileTable::newest_version)
    unsupported(file, fmt::format("has version {} of the format; this topkv reads versions 1 to {}",
                                  header.version, FileTable::newest_version));
  if (header.header_bytes != FileTable::header_bytes || header.unused != 0)
    fail(file,
         fmt::format(
             "its header says that it has {} bytes, and has {} in unused bytes; expected {}, and 0",
             header.header_bytes, header.unused, FileTable::header_bytes));
  const auto bytes = static_cast<std::uint64_t>(file.bytes());
  if (header.file_bytes != bytes)
    fail(file, fmt::format("has {} bytes where its header says {}: it was cut off, or bytes were "
                           "added; fetch or write it again",
                           bytes, header.file_bytes));
  // Each takes some bytes, so that products stay small.
  if (header.sections > static_cast<std::uint64_t>(FileTable::most_sections) ||
      header.sections > bytes / FileTable::section_bytes || header.checksums > bytes / 8)
    fail(file, fmt::format("its header says {} sections and {} checksums, more than its {} bytes "
                           "hold",
                           header.sections, header.checksums, bytes));
  return header;
}

}  // namespace

std::string Section::name() const {
  const auto of_head = [this] { return fmt::format("layer {}, KV head {}", layer, kv_head); };
  switch (kind) {
    case SectionKind::meta:
      return "the description";
    case SectionKind::tokens:
      return "token ids";
    case SectionKind::channels:
      return "scales of keys' channels";
    case SectionKind::bias:
      return "the bias of keys";
    case SectionKind::keys:
      return "K of " + of_head();
    case SectionKind::values:
      return "V of " + of_head();
    case SectionKind::queries:
      return fmt::format("queries of layer {}", layer);
    case SectionKind::state:
      return fmt::format("the recurrent state of layer {}", layer);
    case SectionKind::application:
      return "the application's data";
    case SectionKind::index_keys:
      return fmt::format("index keys of layer {}", layer);
    case SectionKind::index:
      return fmt::format("index {} of {}", index, of_head());
    case SectionKind::tail:
      return fmt::format("tail {} of {}", index, of_head());
  }
  return fmt::format("a section of kind {}", static_cast<std::uint32_t>(kind));
}

std::int64_t FileTable::bytes() const {
  return header_bytes + std::ssize(sections) * section_bytes + std::ssize(checksums) * 8;
}

std::int64_t FileTable::place() {
  std::int64_t blocks_before = 0;
  for (Section& section : sections) {
    section.first_checksum = blocks_before;
    blocks_before += blocks(section.bytes);
  }
  checksums.assign(static_cast<std::size_t>(blocks_before), 0);
  std::int64_t end = whole_pages(bytes());
  for (Section& section : sections) {
    section.at = end;
    end += whole_pages(section.bytes);
  }
  return end;
}

std::vector<std::byte> FileTable::encode(std::int64_t file_bytes) const {
  std::vector<std::byte> out(static_cast<std::size_t>(bytes()));
  std::byte* to = out.data() + header_bytes;
  for (const Section& section : sections) {
    const Entry entry{.kind = static_cast<std::uint32_t>(section.kind),
                      .flags = section.required ? 1U : 0U,
                      .index = section.index,
                      .layer = section.layer,
                      .kv_head = section.kv_head,
                      .unused = 0,
                      .at = static_cast<std::uint64_t>(section.at),
                      .bytes = static_cast<std::uint64_t>(section.bytes),
                      .first_checksum = static_cast<std::uint64_t>(section.first_checksum)};
    std::memcpy(to, &entry, sizeof entry);
    to += sizeof entry;
  }
  std::memcpy(to, checksums.data(), checksums.size() * 8);
  Header header{
      .magic = {},
      .version = version,
      .header_bytes = header_bytes,
      .file_bytes = static_cast<std::uint64_t>(file_bytes),
      .sections = sections.size(),
      .checksums = checksums.size(),
      .table_checksum = topkv::checksum(out.data() + header_bytes, bytes() - header_bytes),
      .unused = 0,
      .checksum = 0};
  std::memcpy(header.magic, magic, sizeof magic);
  header.checksum = header_checksum(header);
  std::memcpy(out.data(), &header, sizeof header);
  return out;
}

bool FileTable::begins(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  try {
    const ReadableFile file(path);
    unsigned char beginning[sizeof magic];
    if (file.bytes() < std::int64_t{sizeof magic}) return false;
    file.read(beginning, sizeof magic, 0);
    return std::memcmp(beginning, magic, sizeof magic) == 0;
  } catch (const FileError&) {
    return false;
  }
}

FileTable FileTable::parse(const ReadableFile& file) {
  const Header header = read_header(file);
  const auto table_bytes =
      static_cast<std::int64_t>(header.sections * section_bytes + header.checksums * 8);
  if (table_bytes > file.bytes() - header_bytes) fail(file, "its table is longer than the file");
  std::vector<std::byte> bytes(static_cast<std::size_t>(table_bytes));
  file.read(bytes.data(), table_bytes, header_bytes);
  const std::uint64_t sum = topkv::checksum(bytes.data(), table_bytes);
  if (sum != header.table_checksum)
    fail(file,
         fmt::format("its table of sections is damaged: it has the checksum {:016x}; expected "
                     "{:016x}",
                     sum, header.table_checksum));

  FileTable table;
  table.version = header.version;
  table.checksums.resize(header.checksums);
  if (header.checksums > 0)
    std::memcpy(table.checksums.data(), bytes.data() + header.sections * section_bytes,
                header.checksums * 8);
  check_zeros(file, header_bytes + table_bytes, "its table of sections");
  std::uint64_t end = static_cast<std::uint64_t>(whole_pages(header_bytes + table_bytes));
  std::uint64_t blocks_before = 0;
  const auto whole = static_cast<std::uint64_t>(file.bytes());
  for (std::uint64_t i = 0; i < header.sections; ++i) {
    Entry entry;
    std::memcpy(&entry, bytes.data() + i * section_bytes, sizeof entry);
    const Section section{.kind = static_cast<SectionKind>(entry.kind),
                          .required = (entry.flags & 1U) != 0,
                          .index = entry.index,
                          .layer = entry.layer,
                          .kv_head = entry.kv_head,
                          .bytes = static_cast<std::int64_t>(entry.bytes),
                          .at = static_cast<std::int64_t>(entry.at),
                          .first_checksum = static_cast<std::int64_t>(entry.first_checksum)};
    // One behind the other, so that each byte of the file is one section's, or 0.
    if (entry.at != end || entry.at > whole || entry.bytes > whole - entry.at ||
        entry.first_checksum != blocks_before)
      fail(file, fmt::format("section {} of {} ({}) has {} bytes at {}, and checksums from {} on; "
                             "expected it at {}, where the section before it ends, within the "
                             "file's {} bytes, and checksums from {} on",
                             i, header.sections, section.name(), entry.bytes, entry.at,
                             entry.first_checksum, end, whole, blocks_before));
    if (entry.unused != 0 || entry.flags > 1)
      fail(file,
           fmt::format(
               "section {} of {} ({}) has flags {}, and {} in unused bytes; expected 0 or 1, and 0",
               i, header.sections, section.name(), entry.flags, entry.unused));
    end += static_cast<std::uint64_t>(whole_pages(section.bytes));
    blocks_before += static_cast<std::uint64_t>(blocks(section.bytes));
    if (section.required && !is_known(section.kind))
      unsupported(file, fmt::format("has {}, which this topkv does not know and cannot skip; "
                                    "expected kinds 1 to {}: a later topkv may have written it",
                                    section.name(), static_cast<std::uint32_t>(last_section_kind)));
    table.sections.push_back(section);
  }
  if (end != whole || blocks_before != header.checksums)
    fail(file, fmt::format("its {} sections end at {} with {} blocks; expected {} and {}",
                           header.sections, end, blocks_before, whole, header.checksums));
  return table;
}

void check_zeros(const ReadableFile& file, std::int64_t end, std::string_view what) {
  std::byte padding[FileTable::page];
  const std::int64_t bytes = FileTable::whole_pages(end) - end;
  file.read(padding, bytes, end);
  if (std::any_of(padding, padding + bytes, [](std::byte b) { return b != std::byte{0}; }))
    fail(file, fmt::format("the bytes between {} and the next page are not 0", what));
}

FileError section_error(const std::filesystem::path& path, const Section& section,
                        std::string_view what) {
  return FileError(fmt::format("{}: {}: {}", path_text(path), section.name(), what));
}

void fail_section(const std::filesystem::path& path, const Section& section,
                  std::string_view what) {
  throw section_error(path, section, what);
}

}  // namespace topkv
