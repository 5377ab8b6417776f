// Reading a context from a file whose bytes nobody vouches for.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <stop_token>
#include <utility>

#include "index/index_kind.h"
#include "src/context/context_file.h"
#include "src/context/file_format.h"
#include "src/context/file_meta.h"
#include "src/context/file_sections.h"
#include "src/context/open_context.h"
#include "src/core/finite_rows.h"
#include "src/core/mapped_file.h"
#include "src/core/open_file.h"
#include "src/core/printable.h"
#include "src/core/threads.h"
#include "src/core/watched.h"
#include "topkv/error.h"

namespace topkv {
namespace {

/// Throws FileError where a row is not finite.
void check_finite(const OpenContext& open, const Section& section, const KeyView& rows,
                  const std::stop_token& stop) {
  constexpr std::int64_t at_a_time = 4096;
  parallel_for(rows.count, at_a_time, [&](std::int64_t begin, std::int64_t end) {
    if (stop.stop_requested()) throw Stopped("stopped");
    const std::int64_t bad = first_not_finite_row(rows.part({begin, end}));
    if (bad >= 0)
      fail_section(
          open.file().path(), section,
          fmt::format("the row of token {} is not finite; expected finite rows", begin + bad));
  });
}

KeyView rows_of(const RowStore& store, const Section& section) {
  const RowsView rows = store.rows(section.layer, section.kv_head);
  return section.kind == SectionKind::keys ? rows.keys : rows.values;
}

class Loading {
 public:
  /// open: outlives this.
  Loading(const OpenContext& open, const ContextLoadOptions& options)
      : open_(open), options_(options) {
    for (const Section& section : open_.table().sections) {
      if (!options.mapped || !is_rows(section)) bytes_ += section.bytes;
    }
  }

  std::int64_t bytes() const { return bytes_; }
  std::int64_t read() const { return read_; }
  const OpenContext& open() const { return open_; }

  LoadedContext load(const std::stop_token& stop) {
    stop_ = stop;
    const FileMeta& meta = open_.meta();
    Segment segment;
    const auto store = options_.mapped ? mapped_rows() : rows_in_memory();
    read_channels(*store);
    if (!options_.mapped) read_rows(*store);
    segment.store = store;
    if (open_.has().queries) segment.queries = read_queries();
    for (std::size_t i = 0; i < meta.indices.size(); ++i)
      segment.indices.push_back(make_index(i, segment));
    read_indices(segment);
    LoadedContext loaded;
    loaded.origin = {
        .model = meta.model, .made_with = meta.made_with, .tokens = read_tokens(), .end = meta.end};
    loaded.context = ContextFile::make(meta.shape, std::move(segment));
    return loaded;
  }

 private:
  void note(std::int64_t bytes) {
    if (stop_.stop_requested()) throw Stopped("load: stopped");
    read_ += bytes;
  }

  std::shared_ptr<RowStore> rows_in_memory() const {
    const FileMeta& meta = open_.meta();
    return std::make_shared<RowStore>(meta.shape, meta.dtype, meta.tokens, options_.memory_budget,
                                      "context");
  }

  std::shared_ptr<RowStore> mapped_rows() const {
    const FileMeta& meta = open_.meta();
    // What was checked is what is mapped, whatever has the name by now.
    const ReadableFile& file = open_.file();
    const auto mapped =
        std::make_shared<MappedFile>(MappedFile::of(file.handle(), file.bytes(), file.path()));
    const Section& first = *open_.of(SectionKind::keys).front();
    return std::make_shared<RowStore>(meta.shape, meta.dtype, meta.tokens,
                                      mapped->bytes().data() + first.at, mapped);
  }

  void read_channels(RowStore& store) {
    for (const Section* section : open_.of(SectionKind::channels)) {
      float* channels = store.channels(0);
      open_.read_all(*section, channels);
      note(section->bytes);
      const auto count = section->bytes / static_cast<std::int64_t>(sizeof(float));
      for (std::int64_t i = 0; i < count; ++i) {
        // Powers of two, so small that no element is beyond float32.
        int exponent = 0;
        if (!(channels[i] > 0 && channels[i] < 0x1p96F) ||
            std::frexp(channels[i], &exponent) != 0.5F)
          fail_section(
              open_.file().path(), *section,
              fmt::format("a scale is {}; expected a power of two below 2^96", channels[i]));
      }
    }
  }

  void read_rows(RowStore& store) {
    struct Piece {
      const Section* section;
      std::byte* to;
      std::int64_t block;
    };
    std::vector<Piece> pieces;
    std::vector<const Section*> sections;
    for (const Section& section : open_.table().sections) {
      if (!is_rows(section)) continue;
      sections.push_back(&section);
      const RowStore::Arrays arrays = store.arrays(section.layer, section.kv_head);
      std::byte* const to = section.kind == SectionKind::keys ? arrays.keys : arrays.values;
      for (std::int64_t i = 0; i < FileTable::blocks(section.bytes); ++i)
        pieces.push_back({&section, to + i * FileTable::block, i});
    }
    store.whole_region();  // on huge pages
    parallel_for(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto& [section, to, block] = pieces[static_cast<std::size_t>(i)];
        read_block(open_.file(), open_.table(), *section, block, to);
        note(FileTable::block_bytes(*section, block));
      }
    });
    for (std::int64_t layer = 0; layer < open_.meta().shape.layers; ++layer)
      store.extend(layer, open_.meta().tokens);
    for (const Section* section : sections) {
      check_finite(open_, *section, rows_of(store, *section), stop_);
    }
  }

  void read_archive(const Section& section, const std::function<void(Archive&)>& take) {
    const std::function<void(std::int64_t)> read = [this](std::int64_t bytes) { note(bytes); };
    SectionReader reader(open_.file(), open_.table(), section, read);
    try {
      take(reader);
    } catch (const InvalidArgument& error) {  // keys that an index refuses
      fail_section(open_.file().path(), section, error.what());
    }
    reader.finish();
  }

  std::shared_ptr<const KeptQueries> read_queries() {
    const auto queries = std::make_shared<KeptQueries>(open_.meta().shape);
    for (const Section* section : open_.of(SectionKind::queries)) {
      read_archive(*section, [&](Archive& archive) {
        queries->fields(section->layer, open_.meta().tokens, archive);
      });
    }
    return queries;
  }

  std::vector<Token> read_tokens() {
    std::vector<Token> tokens;
    for (const Section* section : open_.of(SectionKind::tokens)) {
      tokens.resize(static_cast<std::size_t>(open_.meta().tokens));
      open_.read_all(*section, tokens.data());
      note(section->bytes);
      const auto bad = std::ranges::find_if(tokens, [](Token token) { return token < 0; });
      if (bad != tokens.end())
        fail_section(
            open_.file().path(), *section,
            fmt::format("token {} has the id {}; expected 0 or more", bad - tokens.begin(), *bad));
    }
    return tokens;
  }

  /// Number i, without what its heads and tails have learned; with the heads of another, where they
  /// are that one's.
  std::shared_ptr<SegmentIndex> make_index(std::size_t i, const Segment& segment) const {
    const FileMeta::Index& meta = open_.meta().indices[i];
    const IndexSpec spec(meta.spec);
    if (!spec.kind().is_stored())
      throw FileError(fmt::format("{}: indices[{}] is {}, which is not kept in files",
                                  path_text(open_.file().path()), i, meta.spec));
    auto index = std::make_shared<SegmentIndex>(spec, open_.meta().shape);
    if (meta.heads_of < 0) return index;
    const SegmentIndex& other = *segment.indices[static_cast<std::size_t>(meta.heads_of)];
    for (std::size_t l = 0; l < index->layers.size(); ++l) {
      index->layers[l].heads = other.layers[l].heads;
      for (const auto& head : index->layers[l].heads) {
        if (!spec.kind().is_served_by(*head))
          throw FileError(
              fmt::format("{}: indices[{}], {}, has the heads of {}, which do not serve it",
                          path_text(open_.file().path()), i, meta.spec, other.spec.text()));
      }
    }
    index->shared = true;
    return index;
  }

  void read_indices(const Segment& segment) {
    // Heads before tails, which are made with them.
    for (const SectionKind kind : {SectionKind::index, SectionKind::tail}) {
      const std::vector<const Section*> sections = open_.of(kind);
      parallel_for(std::ssize(sections), 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          read_index(*sections[static_cast<std::size_t>(i)], segment);
      });
    }
  }

  void read_index(const Section& section, const Segment& segment) {
    const SegmentIndex& index = *segment.indices[section.index];
    const LayerIndex& layer = index.layer(section.layer);
    KeyIndex& head = *layer.heads[section.kv_head];
    const RowsView rows = segment.rows(section.layer, section.kv_head);
    read_archive(section, [&](Archive& archive) {
      if (section.kind == SectionKind::index) {
        index.spec.kind().transfer(head, rows.keys, archive);
      } else {
        const_cast<LayerIndex&>(layer).tails[section.kv_head] =
            index.spec.kind().transfer_tail(nullptr, head, rows, archive);
      }
    });
  }

  const OpenContext& open_;
  ContextLoadOptions options_;
  std::stop_token stop_;
  std::int64_t bytes_ = 0;
  std::atomic<std::int64_t> read_ = 0;
};

}  // namespace

LoadedContext load_context(const std::filesystem::path& path, const ContextLoadOptions& options) {
  const OpenContext open(path);
  Loading loading(open, options);
  if (!options.progress) return loading.load({});
  LoadedContext loaded;
  run_watched([&](const std::stop_token& stop) { loaded = loading.load(stop); },
              [&] {
                if (loading.read() < loading.bytes())
                  options.progress({"load", "bytes", loading.read(), loading.bytes()});
              });
  options.progress({"load", "bytes", loading.bytes(), loading.bytes()});
  return loaded;
}

bool is_context_file(const std::filesystem::path& path) { return FileTable::begins(path); }

ContextFileInfo context_file_info(const std::filesystem::path& path) {
  const OpenContext open(path);
  const FileMeta& meta = open.meta();
  ContextFileInfo info{.version = FileTable::version,
                       .writer = meta.writer,
                       .shape = meta.shape,
                       .dtype = meta.dtype,
                       .tokens = meta.tokens,
                       .has_queries = open.has().queries,
                       .model = meta.model,
                       .made_with = meta.made_with,
                       .end = meta.end,
                       .has_token_ids = open.has().tokens,
                       .file_bytes = open.file().bytes()};
  for (const FileMeta::Index& index : meta.indices) info.indices.push_back(index.spec);
  for (const Section& section : open.table().sections) {
    if (is_rows(section) || section.kind == SectionKind::channels) info.rows_bytes += section.bytes;
    if (section.kind == SectionKind::index || section.kind == SectionKind::tail)
      info.index_bytes += section.bytes;
    if (section.kind == SectionKind::queries) info.queries_bytes += section.bytes;
  }
  return info;
}

void verify_context(const std::filesystem::path& path, const ProgressFn& progress) {
  const OpenContext open(path);
  std::int64_t total = 0;
  for (const Section& section : open.table().sections) total += section.bytes;
  std::atomic<std::int64_t> done = 0;
  const auto work = [&](const std::stop_token& stop) {
    for (const Section& section : open.table().sections) {
      parallel_for(FileTable::blocks(section.bytes), 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::byte> block(
            static_cast<std::size_t>(std::min(FileTable::block, section.bytes)));
        for (std::int64_t i = begin; i < end; ++i) {
          if (stop.stop_requested()) throw Stopped("verify: stopped");
          read_block(open.file(), open.table(), section, i, block.data());
          done += FileTable::block_bytes(section, i);
        }
      });
    }
    Loading loading(open, {.mapped = true});
    const LoadedContext loaded = loading.load(stop);
    for (const Section& section : open.table().sections) {
      if (!is_rows(section)) continue;
      check_finite(open, section, rows_of(*ContextFile::segment(*loaded.context).store, section),
                   stop);
    }
  };
  if (!progress) return work({});
  run_watched(work, [&] {
    // The end is told when rows and indices have been looked at, too.
    progress({"verify", "bytes", std::min(done.load(), total - 1), total});
  });
  progress({"verify", "bytes", total, total});
}

}  // namespace topkv
