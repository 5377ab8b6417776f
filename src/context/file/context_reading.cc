#include "src/context/file/context_reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "index/common/index_factory.h"
#include "src/context/file/context_file.h"
#include "src/core/io/mapped_file.h"
#include "src/core/io/open_file.h"
#include "src/core/math/finite_rows.h"
#include "src/core/math/key_bias.h"
#include "src/core/text/printable.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {
namespace {

KeyView rows_of(const RowStore& store, const Section& section) {
  if (section.kind == SectionKind::index_keys) return store.index_keys(section.layer);
  const RowsView rows = store.rows(section.layer, section.kv_head)
                            .part({store.first_row(section.layer), store.size(section.layer)});
  return section.kind == SectionKind::keys ? rows.keys : rows.values;
}

/// Returns where the rows or index keys of a section go.
std::byte* memory_of(const RowStore& store, const Section& section) {
  if (section.kind == SectionKind::index_keys) return store.index_keys().data(section.layer);
  const RowStore::Arrays arrays =
      store.arrays(section.layer, section.kv_head, store.first_row(section.layer));
  return section.kind == SectionKind::keys ? arrays.keys : arrays.values;
}

/// Where all indices are wanted.
[[noreturn]] void fail_unknown(const OpenContext& open) {
  const std::vector<std::string> known = open.meta().known_specs();
  std::vector<std::string> unknown;
  for (const FileMeta::Index& index : open.meta().indices)
    if (!index.known) unknown.push_back(printable_beginning(index.spec));
  throw Unsupported(fmt::format(
      "{}: has indices that this topkv does not know or that depend on an unknown "
      "index ({}); register an index of your own with register_index first, or name the "
      "indices to load, of these: {}",
      path_text(open.file().path()), listed(unknown, 8),
      known.empty() ? "none, only rows" : listed(known, 8)));
}

}  // namespace

ContextReading::ContextReading(const OpenContext& open, const ContextLoadOptions& options)
    : open_(open),
      options_(options),
      wanted_(open.meta().indices.size(), !options.indices),
      heads_(wanted_.size(), false) {
  std::vector<std::string> specs = {"exact"};
  for (const std::string& text : options.indices.value_or(std::vector<std::string>{}))
    specs.push_back(IndexSpec(text).text());
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    const FileMeta::Index& index = open.meta().indices[i];
    if (wanted_[i] && !index.known) fail_unknown(open);
    wanted_[i] = wanted_[i] || (index.known && std::ranges::count(specs, index.spec) > 0);
    if (wanted_[i]) heads_[index.owner] = true;
  }
  for (const Section& section : open_.table().sections) {
    if (is_read(section) && !(options.mapped && is_mapped(section))) bytes_ += section.bytes;
  }
}

bool ContextReading::is_read(const Section& section) const {
  if (section.kind == SectionKind::index) return heads_[section.index];
  return section.kind != SectionKind::tail || wanted_[section.index];
}

LoadedContext ContextReading::load(const std::stop_token& stop) {
  stop_ = stop;
  const FileMeta& meta = open_.meta();
  Segment segment;
  const auto states = options_.mapped ? mapped_states() : states_in_memory();
  RowStore& rows = states->rows();
  read_channels(rows);
  read_bias(rows);
  if (!options_.mapped) {
    read_rows(rows);
    // As rows of a prefill are; never a mapping, which is not written to.
    rows.lock_pages([this](std::byte* data, std::int64_t bytes) {
      return options_.device.compute()->lock_pages(data, bytes);
    });
  }
  read_states(*states);
  segment.states = states;
  segment.tokens_before = meta.tokens_before;
  if (open_.has().queries) segment.queries = read_queries();
  read_indices(segment);
  LoadedContext loaded;
  loaded.origin = {.model = meta.model,
                   .made_with = meta.made_with,
                   .length = meta.length,
                   .tokens = read_tokens(),
                   .end = meta.end,
                   .sources = meta.sources,
                   .application_data = read_application_data()};
  if (!loaded.origin.tokens.empty())
    segment.token_index = std::make_shared<const TokenIndex>(loaded.origin.tokens);
  loaded.context = ContextFile::make(meta.shape, std::move(segment));
  return loaded;
}

void ContextReading::check(const std::stop_token& stop) {
  stop_ = stop;
  const auto states = mapped_states();
  read_channels(states->rows());
  read_bias(states->rows());
  read_states(*states);
  Segment segment;
  segment.states = states;
  for (const Section* section : open_.of(SectionKind::queries)) {
    PrefillQuerySample of_layer(open_.meta().shape);
    read_archive(*section, [&](Archive& archive) {
      of_layer.fields(section->layer, open_.meta().tokens, archive);
    });
  }
  read_tokens();
  read_application_data();
  check_indices(segment);
  check_finite(states->rows());
}

void ContextReading::note(std::int64_t bytes) {
  if (stop_.stop_requested()) throw Stopped("load: stopped");
  read_ += bytes;
}

std::shared_ptr<LayerStates> ContextReading::states_in_memory() const {
  const FileMeta& meta = open_.meta();
  auto states = std::make_shared<LayerStates>(meta.shape, meta.dtype, meta.tokens, meta.first_rows,
                                              options_.memory_budget, "context");
  states->rows().index_keys().begin_at(meta.first_position());
  return states;
}

std::shared_ptr<LayerStates> ContextReading::mapped_states() const {
  const FileMeta& meta = open_.meta();
  // What was checked is what is mapped, whatever has the name by now.
  const ReadableFile& file = open_.file();
  const auto mapped =
      std::make_shared<MappedFile>(MappedFile::of(file.handle(), file.bytes(), file.path()));
  const std::byte* const bytes = mapped->bytes().data();
  auto states =
      std::make_shared<LayerStates>(meta.shape, meta.dtype, meta.tokens, meta.first_rows,
                                    bytes + open_.of(SectionKind::keys).front()->at, mapped);
  IndexKeys& index_keys = states->rows().index_keys();
  index_keys.begin_at(meta.first_position());
  if (const auto sections = open_.of(SectionKind::index_keys); !sections.empty())
    index_keys.borrow(bytes + sections.front()->at, meta.tokens, mapped);
  return states;
}

void ContextReading::read_channels(RowStore& store) {
  for (const Section* section : open_.of(SectionKind::channels)) {
    float* channels = store.channels(0);
    open_.read_all(*section, channels);
    note(section->bytes);
    const auto count = section->bytes / static_cast<std::int64_t>(sizeof(float));
    for (std::int64_t i = 0; i < count; ++i) {
      // Powers of two, so small that no element is beyond float32.
      int exponent = 0;
      if (!(channels[i] > 0 && channels[i] < 0x1p96F) || std::frexp(channels[i], &exponent) != 0.5F)
        fail_section(open_.file().path(), *section,
                     fmt::format("a scale is {}; expected a power of two below 2^96", channels[i]));
    }
  }
}

void ContextReading::read_bias(RowStore& store) {
  const FileMeta& meta = open_.meta();
  for (const Section* section : open_.of(SectionKind::bias)) {
    const auto count = section->bytes / static_cast<std::int64_t>(sizeof(float));
    auto bias = std::make_shared<std::vector<float>>(static_cast<std::size_t>(count));
    open_.read_all(*section, bias->data());
    note(section->bytes);
    const std::int64_t dim = meta.shape.head_dim;
    const std::int64_t bad = first_bad_bias(bias->data(), count / 3 / dim, dim);
    if (bad >= 0)
      fail_section(open_.file().path(), *section,
                   fmt::format("number {} is {}; expected {}", bad,
                               (*bias)[static_cast<std::size_t>(bad)], bias_bounds));
    store.set_bias(std::move(bias), std::max<std::int64_t>(meta.tokens_before, 0));
  }
}

void ContextReading::read_rows(RowStore& store) {
  struct Piece {
    const Section* section;
    std::byte* to;
    std::int64_t block;
  };
  std::vector<Piece> pieces;
  for (const Section& section : open_.table().sections) {
    if (!is_mapped(section)) continue;
    std::byte* const to = memory_of(store, section);
    for (std::int64_t i = 0; i < FileTable::blocks(section.bytes); ++i)
      pieces.push_back({&section, to + i * FileTable::block, i});
  }
  store.use_huge_pages();
  parallel_for(std::ssize(pieces), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto& [section, to, block] = pieces[static_cast<std::size_t>(i)];
      read_block(open_.file(), open_.table(), *section, block, to);
      note(FileTable::block_bytes(*section, block));
    }
  });
  for (std::int64_t layer = 0; layer < open_.meta().shape.layers; ++layer)
    store.extend(layer, open_.meta().tokens);
  check_finite(store);
}

void ContextReading::read_states(LayerStates& states) {
  const std::vector<const Section*> sections = open_.of(SectionKind::state);
  parallel_for(std::ssize(sections), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Section& section = *sections[static_cast<std::size_t>(i)];
      read_archive(section, [&](Archive& archive) {
        states.transfer_state(section.layer, open_.meta().tokens, archive);
      });
    }
  });
}

void ContextReading::read_archive(const Section& section,
                                  const std::function<void(Archive&)>& take) {
  const std::function<void(std::int64_t)> read = [this](std::int64_t bytes) { note(bytes); };
  SectionReader reader(open_.file(), open_.table(), section, read);
  try {
    take(reader);
  } catch (const InvalidArgument& error) {  // keys that an index refuses
    std::throw_with_nested(section_error(open_.file().path(), section, error.what()));
  }
  reader.finish();
}

std::shared_ptr<const PrefillQuerySample> ContextReading::read_queries() {
  const auto queries = std::make_shared<PrefillQuerySample>(open_.meta().shape);
  for (const Section* section : open_.of(SectionKind::queries)) {
    read_archive(*section, [&](Archive& archive) {
      queries->fields(section->layer, open_.meta().tokens, archive);
    });
  }
  return queries;
}

std::vector<Token> ContextReading::read_tokens() {
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

std::vector<std::byte> ContextReading::read_application_data() {
  std::vector<std::byte> data;
  for (const Section* section : open_.of(SectionKind::application)) {
    read_archive(*section, [&](Archive& archive) { archive.elements(data, section->bytes); });
  }
  return data;
}

/// Throws FileError where a row is not finite.
void ContextReading::check_finite(const RowStore& store) const {
  constexpr std::int64_t at_a_time = 4096;
  for (const Section& section : open_.table().sections) {
    if (!is_mapped(section)) continue;
    const KeyView rows = rows_of(store, section);
    parallel_for(rows.count, at_a_time, [&](std::int64_t begin, std::int64_t end) {
      if (stop_.stop_requested()) throw Stopped("stopped");
      const std::int64_t bad = first_not_finite_row(rows.part({begin, end}));
      if (bad >= 0)
        fail_section(open_.file().path(), section,
                     is_rows(section)
                         ? fmt::format("the row of token {} is not finite; expected finite rows",
                                       store.first_row(section.layer) + begin + bad)
                         : fmt::format("key {} is not finite; expected finite keys", begin + bad));
    });
  }
}

void ContextReading::read_head(const Section& section, const Segment& segment, HeadIndex& head) {
  const RowsView rows = segment.rows(section.layer, section.kv_head);
  read_archive(section, [&](Archive& archive) { head.transfer(rows.keys, archive); });
}

std::unique_ptr<RowTail> ContextReading::read_tail(const Section& section, const IndexSpec& spec,
                                                   const Segment& segment, const KeyIndex& head) {
  const RowsView rows = segment.rows(section.layer, section.kv_head);
  std::unique_ptr<RowTail> tail;
  read_archive(section, [&](Archive& archive) {
    tail = spec.factory().transfer_tail(nullptr, head, rows, archive);
  });
  return tail;
}

void ContextReading::read_indices(Segment& segment) {
  const std::vector<FileMeta::Index>& described = open_.meta().indices;
  const auto make = [&](std::size_t i) {
    return std::make_shared<SegmentIndex>(described[i].known.value(), open_.meta().shape);
  };
  std::vector<std::shared_ptr<SegmentIndex>> indices(wanted_.size());
  std::vector<bool> counted(wanted_.size(), false);  // of those whose heads another has
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (!wanted_[i]) continue;
    const std::size_t owner = described[i].owner;
    // One that is not wanted, but whose heads are.
    if (!indices[owner]) indices[owner] = make(owner);
    if (owner != i) {
      indices[i] = make(i);
      for (std::size_t l = 0; l < indices[i]->layers.size(); ++l)
        indices[i]->layers[l].heads = indices[owner]->layers[l].heads;
    }
    indices[i]->shared = counted[owner];
    counted[owner] = true;
  }
  // Heads before tails, which are made with them.
  for (const SectionKind kind : {SectionKind::index, SectionKind::tail}) {
    std::vector<const Section*> sections = open_.of(kind);
    std::erase_if(sections, [this](const Section* section) { return !is_read(*section); });
    parallel_for(std::ssize(sections), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Section& section = *sections[static_cast<std::size_t>(i)];
        SegmentIndex& index = *indices[section.index];
        LayerIndex& layer = index.layers[section.layer];
        HeadIndex& head = *layer.heads[section.kv_head];
        if (kind == SectionKind::index) {
          read_head(section, segment, head);
        } else {
          layer.tails[section.kv_head] = read_tail(section, index.spec, segment, head);
        }
      }
    });
  }
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (wanted_[i]) segment.indices.push_back(indices[i]);
}

void ContextReading::check_indices(const Segment& segment) {
  const std::vector<FileMeta::Index>& described = open_.meta().indices;
  // Of each index its sections, of the same layers and heads for all, and those that have its
  // heads, itself among them.
  struct Owner {
    std::vector<const Section*> heads, tails;
    std::vector<std::size_t> indices;
  };
  std::vector<Owner> owners(described.size());
  for (std::size_t i = 0; i < described.size(); ++i)
    if (wanted_[i]) owners[described[i].owner].indices.push_back(i);
  for (const Section* section : open_.of(SectionKind::index))
    if (is_read(*section)) owners[section->index].heads.push_back(section);
  for (const Section* section : open_.of(SectionKind::tail))
    if (is_read(*section)) owners[section->index].tails.push_back(section);
  for (std::size_t own = 0; own < owners.size(); ++own) {
    const std::vector<const Section*>& sections = owners[own].heads;
    parallel_for(std::ssize(sections), 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto h = static_cast<std::size_t>(begin); h < static_cast<std::size_t>(end); ++h) {
        const auto head = described[own].known->factory().make();
        read_head(*sections[h], segment, *head);
        for (const std::size_t i : owners[own].indices) {
          if (!owners[i].tails.empty())
            read_tail(*owners[i].tails[h], *described[i].known, segment, *head);
        }
      }
    });
  }
}

}  // namespace topkv
