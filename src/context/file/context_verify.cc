// Checking a context's file, all of it, in little memory.
#include <algorithm>
#include <atomic>
#include <stop_token>
#include <vector>

#include "src/context/file/context_reading.h"
#include "src/context/file/open_context.h"
#include "src/core/threads/run_with_progress.h"
#include "src/core/threads/threads.h"
#include "topkv/error.h"

namespace topkv {

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
    ContextReading(open, {.indices = open.meta().known_specs()}).check(stop);
  };
  if (!progress) return work({});
  run_watched(work, [&] {
    // The end is told when rows and indices have been looked at, too.
    progress({"verify", "bytes", std::min(done.load(), total - 1), total});
  });
  progress({"verify", "bytes", total, total});
}

}  // namespace topkv
