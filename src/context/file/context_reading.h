// Reading a context from an open file: into memory, or part by part to check it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "src/context/file/open_context.h"
#include "src/context/segment.h"
#include "src/core/format/archive.h"
#include "topkv/context_file.h"

namespace topkv {

/// Reads one context. One thread at a time; read() is safe from any thread.
class ContextReading {
 public:
  /// `open` outlives this. Throws InvalidArgument for an invalid spec in the options, and
  /// Unsupported when all indices are wanted and one is unknown.
  ContextReading(const OpenContext& open, const ContextLoadOptions& options);

  /// Returns the bytes that load reads in all.
  std::int64_t bytes() const { return bytes_; }
  /// Returns the bytes that have been read.
  std::int64_t read() const { return read_; }

  /// Loads the context.
  LoadedContext load(const std::stop_token& stop);

  /// Checks everything that load checks, with rows where they lie in the file. At most one head of
  /// an index for each thread is in memory at a time.
  void check(const std::stop_token& stop);

 private:
  bool is_read(const Section& section) const;
  void note(std::int64_t bytes);

  std::shared_ptr<LayerStates> states_in_memory() const;
  std::shared_ptr<LayerStates> mapped_states() const;
  void read_channels(RowStore& store);
  void read_bias(RowStore& store);
  void read_rows(RowStore& store);
  void read_states(LayerStates& states);
  void check_finite(const RowStore& store) const;
  std::shared_ptr<const PrefillQuerySample> read_queries();
  std::vector<Token> read_tokens();
  std::vector<std::byte> read_application_data();

  void read_archive(const Section& section, const std::function<void(Archive&)>& take);
  void read_head(const Section& section, const Segment& segment, HeadIndex& head);
  std::unique_ptr<RowTail> read_tail(const Section& section, const IndexSpec& spec,
                                     const Segment& segment, const KeyIndex& head);
  void read_indices(Segment& segment);
  void check_indices(const Segment& segment);

  const OpenContext& open_;
  ContextLoadOptions options_;
  std::vector<bool> wanted_;  // whether each index of the file is wanted
  std::vector<bool> heads_;   // whether its heads are read, for itself or for another index
  std::stop_token stop_;
  std::int64_t bytes_ = 0;
  std::atomic<std::int64_t> read_ = 0;
};

}  // namespace topkv
