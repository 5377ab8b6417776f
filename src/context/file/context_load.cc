// Reading a context from a file whose bytes nobody vouches for.
#include <stop_token>

#include "src/context/file/context_reading.h"
#include "src/context/file/open_context.h"
#include "src/core/text/printable.h"
#include "src/core/threads/run_with_progress.h"

namespace topkv {

LoadedContext load_context(const std::filesystem::path& path, const ContextLoadOptions& options) {
  const OpenContext open(path);
  ContextReading loading(open, options);
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
  ContextFileInfo info{.version = open.table().version,
                       .writer = meta.writer,
                       .shape = meta.shape,
                       .dtype = meta.dtype,
                       .tokens = meta.tokens,
                       .tokens_before = meta.tokens_before,
                       .indices = meta.known_specs(),
                       .has_queries = open.has().queries,
                       .model = meta.model,
                       .made_with = meta.made_with,
                       .length = meta.length,
                       .end = meta.end,
                       .has_token_ids = open.has().tokens,
                       .file_bytes = open.file().bytes()};
  for (const FileMeta::Index& index : meta.indices)
    if (!index.known) info.unknown_indices.push_back(printable(index.spec));
  for (const Section& section : open.table().sections) {
    if (is_mapped(section) || section.kind == SectionKind::channels ||
        section.kind == SectionKind::bias)
      info.rows_bytes += section.bytes;
    if (section.kind == SectionKind::index || section.kind == SectionKind::tail)
      info.index_bytes += section.bytes;
    if (section.kind == SectionKind::queries) info.queries_bytes += section.bytes;
    if (section.kind == SectionKind::state) info.states_bytes += section.bytes;
    if (section.kind == SectionKind::application) info.application_bytes += section.bytes;
  }
  return info;
}

}  // namespace topkv
