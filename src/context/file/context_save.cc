// Writing a context to a file: rows from where they lie, all blocks in parallel.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <stop_token>

#include "index/codes/code_tail.h"
#include "index/codes/codes_index.h"
#include "index/common/index_factory.h"
#include "src/context/file/context_file.h"
#include "src/context/file/file_format.h"
#include "src/context/file/file_meta.h"
#include "src/context/file/file_sections.h"
#include "src/core/io/checksum.h"
#include "src/core/io/open_file.h"
#include "src/core/text/printable.h"
#include "src/core/threads/run_with_progress.h"
#include "src/core/threads/threads.h"
#include "src/store/row_store.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// The index, before number i, that has the heads of this one; -1: they are its own.
std::int64_t heads_of(const Segment& segment, std::size_t i) {
  const SegmentIndex& index = *segment.indices[i];
  if (!index.shared) return -1;
  for (std::size_t l = 0; l < index.layers.size(); ++l) {
    if (index.layers[l].heads.empty()) continue;
    for (std::size_t other = 0; other < i; ++other) {
      if (segment.indices[other]->layers[l].heads[0] == index.layers[l].heads[0])
        return static_cast<std::int64_t>(other);
    }
  }
  return -1;
}

FileMeta describe(const Context& context, const ContextOrigin& origin) {
  check_sources(origin.sources);
  const Segment& segment = ContextFile::segment(context);
  FileMeta meta{.writer = fmt::format("topkv {}", TOPKV_VERSION),
                .shape = context.shape(),
                .dtype = context.dtype(),
                .tokens = context.tokens(),
                .tokens_before = segment.tokens_before,
                .indices = {},
                .model = printable(origin.model),
                .made_with = printable(origin.made_with),
                .length = origin.length,
                .end = origin.end,
                .sources = origin.sources};
  for (ContextSource& source : meta.sources) source.name = printable(source.name);
  const RowStore& rows = segment.states->rows();
  for (std::int64_t layer = 0; layer < meta.shape.layers; ++layer)
    meta.first_rows.push_back(rows.has_rows(layer) ? rows.first_row(layer) : 0);
  if (std::ranges::count(meta.first_rows, 0) == std::ssize(meta.first_rows))
    meta.first_rows.clear();
  for (std::size_t i = 0; i < segment.indices.size(); ++i) {
    const IndexSpec& spec = segment.indices[i]->spec;
    meta.indices.push_back({.spec = spec.text(), .heads_of = heads_of(segment, i), .known = spec});
  }
  return meta;
}

/// The first version of the format that has such a context.
std::uint32_t version_of(const FileMeta& meta, const Segment& segment) {
  const auto knows_shared_error = [](const std::unique_ptr<RowTail>& tail) {
    return tail != nullptr && tail->code_tail() != nullptr &&
           tail->code_tail()->knows_shared_error();
  };
  for (const auto& index : segment.indices)
    for (const LayerIndex& layer : index->layers)
      if (std::ranges::any_of(layer.tails, knows_shared_error)) return 5;
  if (meta.shape.indexer) return 4;
  if (meta.shape.keys_are_values) return 3;
  return meta.shape.row_layers() < meta.shape.layers || !meta.first_rows.empty() ||
                 meta.shape.has_two_widths()
             ? 2
             : 1;
}

/// What one file is written from.
class Saving {
 public:
  Saving(const Context& context, const ContextOrigin& origin)
      : segment_(ContextFile::segment(context)),
        origin_(origin),
        meta_(describe(context, origin)),
        text_(write_meta(meta_)) {
    check_readable_again();
    const bool queries = segment_.queries != nullptr && segment_.queries->has_layers();
    if (queries) queries_ = *segment_.queries;
    table_.version = version_of(meta_, segment_);
    table_.sections = sections_of(meta_, {.tokens = !origin.tokens.empty(),
                                          .queries = queries,
                                          .bias = segment_.states->rows().bias(0) != nullptr,
                                          .application = !origin.application_data.empty()});
    table_.sections.insert(table_.sections.begin(),
                           {.kind = SectionKind::meta, .bytes = std::ssize(text_)});
    if (!too_few_sections(meta_, std::ssize(table_.sections)).empty())
      throw InvalidArgument(
          fmt::format("save: {} indices of {} layers, most of which have no index, are more than a "
                      "file holds; save fewer indices",
                      meta_.indices.size(), meta_.shape.layers));
    for (Section& section : table_.sections) {
      if (!section.is_archived()) continue;
      CountingArchive counting(section);
      transfer(section, counting);
      section.bytes = counting.bytes();
    }
    file_bytes_ = table_.place();
    for (const Section& section : table_.sections) bytes_ += section.bytes;
  }

  std::int64_t bytes() const { return bytes_; }
  std::int64_t written() const { return written_; }

  void write(const std::filesystem::path& path, const std::stop_token& stop) {
    ReplacingFile file(path, file_bytes_);
    const std::function<void(std::int64_t)> written = [&](std::int64_t bytes) {
      if (stop.stop_requested()) throw Stopped("save: stopped");
      written_ += bytes;
    };
    struct Piece {
      const Section* section;
      std::int64_t block;  // -1: all of it, archived
    };
    std::vector<Piece> pieces;
    for (const Section& section : table_.sections) {
      if (section.is_archived()) {
        pieces.push_back({&section, -1});
        continue;
      }
      for (std::int64_t i = 0; i < FileTable::blocks(section.bytes); ++i)
        pieces.push_back({&section, i});
    }
    parallel_for(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto& [section, block] = pieces[static_cast<std::size_t>(i)];
        if (block < 0) {
          SectionWriter writer(file, table_, *section, written);
          transfer(*section, writer);
          writer.finish();
          continue;
        }
        const std::byte* from = data_of(*section) + block * FileTable::block;
        const std::int64_t count = FileTable::block_bytes(*section, block);
        table_.checksum(*section, block) = checksum(from, count);
        file.write(from, count, section->at + block * FileTable::block);
        written(count);
      }
    });
    // Header and table last: what has them has all that they speak of.
    file.sync();
    const std::vector<std::byte> head = table_.encode(file_bytes_);
    file.write(head.data(), std::ssize(head), 0);
    file.commit();
  }

 private:
  /// What is written can be read, and says the same.
  void check_readable_again() const {
    try {
      const FileMeta read = parse_meta(text_, "save");
      if (read.end.text_left == meta_.end.text_left && read.end.system == meta_.end.system) {
        for (const Token token : origin_.tokens)
          if (token < 0) throw InvalidArgument(fmt::format("save: token id {} is below 0", token));
        return;
      }
    } catch (const FileError& error) {
      throw InvalidArgument(error.what());
    }
    throw InvalidArgument(
        "save: a text of the origin is not UTF-8; the file's description takes UTF-8 only");
  }

  const std::byte* data_of(const Section& section) const {
    switch (section.kind) {
      case SectionKind::meta:
        return reinterpret_cast<const std::byte*>(text_.data());
      case SectionKind::tokens:
        return reinterpret_cast<const std::byte*>(origin_.tokens.data());
      case SectionKind::channels:
        return reinterpret_cast<const std::byte*>(segment_.states->rows().channels(0));
      case SectionKind::bias:
        return reinterpret_cast<const std::byte*>(segment_.states->rows().bias(0));
      case SectionKind::index_keys:
        return segment_.states->rows().index_keys(section.layer).data;
      case SectionKind::keys:
        return segment_.rows(section.layer, section.kv_head).key(meta_.first_row(section.layer));
      default:
        return segment_.rows(section.layer, section.kv_head).value(meta_.first_row(section.layer));
    }
  }

  void transfer(const Section& section, Archive& archive) {
    if (section.kind == SectionKind::queries)
      return queries_.fields(section.layer, meta_.tokens, archive);
    if (section.kind == SectionKind::state) {
      RecurrentState state = segment_.states->state(section.layer);  // a copy, as queries_
      return state.fields(meta_.tokens, archive);
    }
    if (section.kind == SectionKind::application) {
      std::vector<std::byte> data = origin_.application_data;  // a copy, as queries_
      return archive.elements(data, std::ssize(data));
    }
    const SegmentIndex& index = *segment_.indices[section.index];
    const LayerIndex& layer = index.layer(section.layer);
    HeadIndex& head = *layer.heads[section.kv_head];
    const RowsView rows = segment_.rows(section.layer, section.kv_head);
    if (section.kind == SectionKind::index) return head.transfer(rows.keys, archive);
    index.spec.factory().transfer_tail(layer.tails[section.kv_head].get(), head, rows, archive);
  }

  const Segment& segment_;
  const ContextOrigin& origin_;
  FileMeta meta_;
  std::string text_;
  PrefillQuerySample
      queries_;  // a copy: an archive takes what it writes as if it were to change it
  FileTable table_;
  std::int64_t file_bytes_ = 0;
  std::int64_t bytes_ = 0;
  std::atomic<std::int64_t> written_ = 0;
};

}  // namespace

std::int64_t expected_file_bytes(const AttentionShape& shape, std::int64_t tokens, KvDType dtype,
                                 const std::vector<std::string>& indices) {
  std::int64_t of_row = 0;  // codes of a key and a value
  std::int64_t axes = 0;    // matrices of a head: most of what a short text takes
  std::set<std::string> seen;
  std::vector<std::unique_ptr<HeadIndex>> built;
  for (const std::string& text : indices) {
    const IndexSpec spec(text);
    if (!seen.insert(spec.text()).second) continue;
    const auto serves = [&](const auto& other) { return spec.factory().is_served_by(*other); };
    const bool shared = std::ranges::any_of(built, serves);
    std::unique_ptr<HeadIndex> index = spec.factory().make();
    if (const auto* codes = index->codes_index()) {
      if (!shared) {
        of_row += codes->params().bytes_of_key(shape.head_dim);
        ++axes;
      }
      if (spec.has_code_tail() && tokens >= SharedError::least_rows) ++axes;
      if (spec.has_code_tail() && codes->spec() == spec.text()) {  // of "mean" no value has a code
        const std::int64_t bits = codes->params().bits_of_value(shape.head_dim);
        of_row += (bits + 7) / 8;
        axes += bits > 0 ? 1 : 0;
      }
    }
    built.push_back(std::move(index));
  }
  std::int64_t heads = 0;  // with an index
  std::int64_t state_values = 0;
  for (std::int64_t l = 0; l < shape.layers; ++l) {
    heads += shape.has_index(l) ? shape.kv_heads : 0;
    state_values += shape.state_size_of(l);
  }
  const std::int64_t beside_rows = heads * of_row + static_cast<std::int64_t>(sizeof(Token));
  const std::int64_t of_token = RowStore::bytes_per_token(shape, dtype) + beside_rows;
  const std::int64_t fixed = (heads * axes * shape.head_dim * shape.head_dim + state_values) *
                             static_cast<std::int64_t>(sizeof(float));
  std::int64_t bytes = 0;
  if (tokens < 0 || __builtin_mul_overflow(of_token, tokens, &bytes) ||
      __builtin_add_overflow(bytes, fixed, &bytes))
    throw InvalidArgument(fmt::format("a context of {} tokens of {} bytes", tokens, of_token));
  return shape.context_bytes(dtype, tokens) + beside_rows * tokens + fixed;
}

void save_context(const Context& context, const std::filesystem::path& path,
                  const ContextOrigin& origin, const ProgressFn& progress) {
  if (!origin.tokens.empty() && std::ssize(origin.tokens) != context.tokens())
    throw InvalidArgument(
        fmt::format("save: {} token ids for a context of {} tokens; give all of them, or none",
                    origin.tokens.size(), context.tokens()));
  Saving saving(context, origin);
  const auto work = [&](const std::stop_token& stop) { saving.write(path, stop); };
  if (!progress) return work({});
  run_watched(work, [&] {
    if (saving.written() < saving.bytes())
      progress({"save", "bytes", saving.written(), saving.bytes()});
  });
  progress({"save", "bytes", saving.bytes(), saving.bytes()});
}

}  // namespace topkv
