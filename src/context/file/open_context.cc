#include "src/context/file/open_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "src/core/text/printable.h"
#include "topkv/error.h"

namespace topkv {

OpenContext::OpenContext(const std::filesystem::path& path)
    : file_(path), table_(FileTable::parse(file_)) {
  if (table_.sections.empty() || table_.sections.front().kind != SectionKind::meta)
    throw FileError(fmt::format("{}: its first section is {}; expected the description",
                                path_text(path),
                                table_.sections.empty() ? "none" : table_.sections.front().name()));
  const Section& first = table_.sections.front();
  constexpr std::int64_t most_text = 1 << 24;
  if (first.bytes > most_text)
    fail_section(path, first,
                 fmt::format("has {} bytes; at most {} are read", first.bytes, most_text));
  text_.resize(static_cast<std::size_t>(first.bytes));
  read_all(first, text_.data());
  meta_ = parse_meta(text_, path);
  check_sections();
}

std::vector<const Section*> OpenContext::of(SectionKind kind) const {
  std::vector<const Section*> some;
  for (const Section& section : table_.sections)
    if (section.kind == kind) some.push_back(&section);
  return some;
}

void OpenContext::read_all(const Section& section, void* to) const {
  for (std::int64_t i = 0; i < FileTable::blocks(section.bytes); ++i) {
    read_block(file_, table_, section, i, static_cast<std::byte*>(to) + i * FileTable::block);
  }
}

/// Each is where sections_of has it, with as many bytes where these are known.
void OpenContext::check_sections() {
  const auto is_there = [&](SectionKind kind) {
    return std::ranges::any_of(table_.sections,
                               [&](const Section& section) { return section.kind == kind; });
  };
  has_ = {.tokens = is_there(SectionKind::tokens),
          .queries = is_there(SectionKind::queries),
          .bias = is_there(SectionKind::bias),
          .application = is_there(SectionKind::application)};
  const std::int64_t there = std::ssize(table_.sections);
  if (const std::string lacking = too_few_sections(meta_, there); !lacking.empty())
    throw FileError(fmt::format("{}: its description names {}, but it has only {} sections",
                                path_text(file_.path()), lacking, there));
  const auto is_of_unknown = [&](const Section& section) {
    return is_of_index(section) && section.index < meta_.indices.size() &&
           !meta_.indices[section.index].known;
  };
  const std::vector<Section> wanted = sections_of(meta_, has_);
  std::size_t next = 0;
  std::int64_t rows_end = -1;
  for (const Section& section : table_.sections) {
    check_zeros(file_, section.at + section.bytes, section.name());
    if (&section == &table_.sections.front() || !is_known(section.kind)) continue;
    if (is_of_unknown(section) && (next == wanted.size() || is_of_index(wanted[next]))) continue;
    if (next == wanted.size())
      fail_section(file_.path(), section,
                   fmt::format("is one section too many; expected {} after the description", next));
    const Section& one = wanted[next++];
    if (section.kind != one.kind || section.index != one.index || section.layer != one.layer ||
        section.kv_head != one.kv_head)
      fail_section(file_.path(), section, fmt::format("is in the place of {}", one.name()));
    if (!section.is_archived() && section.bytes != one.bytes)
      fail_section(file_.path(), section,
                   fmt::format("has {} bytes; expected {}, for {} tokens", section.bytes, one.bytes,
                               meta_.tokens));
    if (!is_mapped(section)) continue;
    if (rows_end >= 0 && section.at != rows_end)
      fail_section(file_.path(), section, "does not follow the rows before it");
    rows_end = section.at + FileTable::whole_pages(section.bytes);
  }
  if (next != wanted.size())
    throw FileError(
        fmt::format("{}: {} is missing: it has {} sections after the description; expected {}",
                    path_text(file_.path()), wanted[next].name(), next, wanted.size()));
}

}  // namespace topkv
