#include "src/context/file/file_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "index/common/index_factory.h"
#include "src/core/io/checksum.h"
#include "src/core/text/printable.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {

std::string too_few_sections(const FileMeta& meta, std::int64_t sections) {
  // Rows have K and V, or K alone, for each KV head of a layer that has rows of its own.
  const AttentionShape& shape = meta.shape;
  const std::int64_t halves = shape.keys_are_values ? 1 : 2;
  std::int64_t heads = 0;  // kv_heads are at most 2^20, as are layers
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    heads += shape.has_rows(layer) ? shape.kv_heads_of(layer) : 0;
  if (heads > sections / halves)
    return fmt::format("{} layers of {} KV heads", shape.layers, shape.kv_heads);
  if (heads * halves + shape.index_key_layers() > sections)
    return fmt::format("{} layers with index keys", shape.index_key_layers());
  // Indices have one or two for each KV head of a layer that has an index. Of others there is a
  // place in memory, a little larger than a section's in the table.
  constexpr std::int64_t most_places = 16;  // for each section
  const std::int64_t indices = std::ssize(meta.indices);
  std::int64_t whole_layers = 0;
  for (std::int64_t layer = 0; layer < shape.layers; ++layer)
    whole_layers += shape.has_index(layer) ? 1 : 0;
  const auto with_sections = std::ranges::count_if(meta.indices, [](const FileMeta::Index& index) {
    return index.known && (index.heads_of < 0 || index.known->has_tail());
  });
  if (indices * shape.layers > most_places * sections ||
      (whole_layers > 0 && with_sections > sections / (whole_layers * shape.kv_heads)))
    return fmt::format("{} indices of {} layers", indices, shape.layers);
  return {};
}

std::vector<Section> sections_of(const FileMeta& meta, const SectionsOf& has) {
  const AttentionShape& shape = meta.shape;
  std::vector<Section> sections;
  const auto add = [&](SectionKind kind, std::int64_t index, std::int64_t layer,
                       std::int64_t kv_head, std::int64_t bytes) {
    sections.push_back({.kind = kind,
                        .index = static_cast<std::uint32_t>(index),
                        .layer = static_cast<std::uint32_t>(layer),
                        .kv_head = static_cast<std::uint32_t>(kv_head),
                        .bytes = bytes});
  };
  if (has.tokens)
    add(SectionKind::tokens, 0, 0, 0, meta.tokens * static_cast<std::int64_t>(sizeof(Token)));
  if (RowStore::has_channels(shape, meta.dtype)) {
    add(SectionKind::channels, 0, 0, 0,
        shape.layers * shape.widest_kv() * static_cast<std::int64_t>(sizeof(float)));
    if (has.bias) {
      add(SectionKind::bias, 0, 0, 0,
          shape.layers * 3 * shape.widest_kv() * static_cast<std::int64_t>(sizeof(float)));
    }
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::int64_t rows = meta.tokens - meta.first_row(layer);
    if (!shape.has_rows(layer)) continue;
    const std::int64_t dim = shape.head_dim_of(layer);
    for (std::int64_t head = 0; head < shape.kv_heads_of(layer); ++head) {
      add(SectionKind::keys, 0, layer, head, rows * vector_bytes(meta.dtype.keys, dim));
      if (shape.keys_are_values) continue;
      add(SectionKind::values, 0, layer, head, rows * vector_bytes(meta.dtype.values, dim));
    }
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.has_index_keys(layer)) continue;
    const IndexerShape& of = *shape.indexer;
    add(SectionKind::index_keys, 0, layer, 0,
        of.completed(meta.first_position(), meta.tokens) * of.key_bytes());
  }
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    if (!shape.is_attention(layer)) add(SectionKind::state, 0, layer, 0, 0);
  }
  if (has.application) add(SectionKind::application, 0, 0, 0, 0);
  if (has.queries) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer)
      add(SectionKind::queries, 0, layer, 0, 0);
  }
  for (std::int64_t i = 0; i < std::ssize(meta.indices); ++i) {
    const FileMeta::Index& index = meta.indices[static_cast<std::size_t>(i)];
    if (!index.known) continue;
    const bool has_tail = index.known->has_tail();
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      if (!shape.has_index(layer)) continue;
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        if (index.heads_of < 0) add(SectionKind::index, i, layer, head, 0);
        if (has_tail) add(SectionKind::tail, i, layer, head, 0);
      }
    }
  }
  return sections;
}

void CountingArchive::transfer(void* /*data*/, std::int64_t bytes) { bytes_ += bytes; }

void CountingArchive::fail(std::string_view what) const {
  throw InvalidArgument(fmt::format("save: {}: {}", section_.name(), what));
}

SectionWriter::SectionWriter(ReplacingFile& file, FileTable& table, const Section& section,
                             const std::function<void(std::int64_t)>& written)
    : file_(file),
      table_(table),
      section_(section),
      written_(written),
      block_(static_cast<std::size_t>(std::min(FileTable::block, section.bytes))) {}

void SectionWriter::transfer(void* data, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  const std::int64_t before = std::min(number_ * FileTable::block, section_.bytes) + full_;
  if (bytes > section_.bytes - before) fail("its size changed while it was written");
  while (bytes > 0) {
    const std::int64_t room = FileTable::block_bytes(section_, number_) - full_;
    const std::int64_t some = std::min(bytes, room);
    std::memcpy(block_.data() + full_, from, static_cast<std::size_t>(some));
    full_ += some;
    from += some;
    bytes -= some;
    if (some == room) flush();
  }
}

void SectionWriter::flush() {
  table_.checksum(section_, number_) = checksum(block_.data(), full_);
  file_.write(block_.data(), full_, section_.at + number_ * FileTable::block);
  written_(full_);
  full_ = 0;
  ++number_;
}

void SectionWriter::finish() {
  if (number_ != FileTable::blocks(section_.bytes) || full_ != 0)
    fail("its size changed while it was written");
}

void SectionWriter::fail(std::string_view what) const {
  throw InvalidArgument(fmt::format("{}: {}", section_.name(), what));
}

SectionReader::SectionReader(const ReadableFile& file, const FileTable& table,
                             const Section& section, const std::function<void(std::int64_t)>& read)
    : file_(file),
      table_(table),
      section_(section),
      read_(read),
      block_(static_cast<std::size_t>(std::min(FileTable::block, section.bytes))) {}

void SectionReader::transfer(void* data, std::int64_t bytes) {
  if (bytes > left()) fail("it ends too early");
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::int64_t number = given_ / FileTable::block;
    const std::int64_t at = given_ % FileTable::block;
    const std::int64_t of_block = FileTable::block_bytes(section_, number);
    if (at == 0) {
      read_block(file_, table_, section_, number, block_.data());
      read_(of_block);
    }
    const std::int64_t some = std::min(bytes, of_block - at);
    std::memcpy(to, block_.data() + at, static_cast<std::size_t>(some));
    to += some;
    bytes -= some;
    given_ += some;
  }
}

void SectionReader::finish() const {
  if (left() != 0) fail(fmt::format("has {} bytes more than expected", left()));
}

void SectionReader::fail(std::string_view what) const {
  fail_section(file_.path(), section_, what);
}

void read_block(const ReadableFile& file, const FileTable& table, const Section& section,
                std::int64_t i, std::byte* to) {
  const std::int64_t bytes = FileTable::block_bytes(section, i);
  const std::int64_t at = section.at + i * FileTable::block;
  file.read(to, bytes, at);
  if (checksum(to, bytes) != table.checksum(section, i))
    fail_section(
        file.path(), section,
        fmt::format("bytes {} to {} of the file are damaged: their checksum does not match", at,
                    at + bytes - 1));
}

}  // namespace topkv
