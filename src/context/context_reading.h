// A context out of an open file: all of it, or index after index.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "src/context/open_context.h"
#include "src/context/segment.h"
#include "src/core/archive.h"
#include "topkv/context_file.h"

namespace topkv {

/// One thread at a time; read() is safe from any.
class ContextReading {
 public:
  /// open: outlives this. Throws InvalidArgument for specs that are not understood.
  ContextReading(const OpenContext& open, const ContextLoadOptions& options);

  /// Bytes of all that is to be read, and those that have been.
  std::int64_t bytes() const { return bytes_; }
  std::int64_t read() const { return read_; }

  LoadedContext load(const std::stop_token& stop);

  /// Checks what load does, and that rows are finite, where they lie in the file. Of indices there
  /// are as many heads in memory at a time as there are threads.
  void check(const std::stop_token& stop);

 private:
  bool is_read(const Section& section) const;
  void note(std::int64_t bytes);

  std::shared_ptr<RowStore> rows_in_memory() const;
  std::shared_ptr<RowStore> mapped_rows() const;
  void read_channels(RowStore& store);
  void read_bias(RowStore& store);
  void read_rows(RowStore& store);
  void check_finite(const RowStore& store) const;
  std::shared_ptr<const KeptQueries> read_queries();
  std::vector<Token> read_tokens();

  void read_archive(const Section& section, const std::function<void(Archive&)>& take);
  void read_head(const Section& section, const IndexSpec& spec, const Segment& segment,
                 KeyIndex& head);
  std::unique_ptr<RowTail> read_tail(const Section& section, const IndexSpec& spec,
                                     const Segment& segment, const KeyIndex& head);
  void read_indices(Segment& segment);
  void check_indices(const Segment& segment);

  const OpenContext& open_;
  ContextLoadOptions options_;
  std::vector<bool> wanted_;  // of the file's indices
  std::vector<bool> heads_;   // of these, those whose heads are read: for themselves, or others
  std::stop_token stop_;
  std::int64_t bytes_ = 0;
  std::atomic<std::int64_t> read_ = 0;
};

}  // namespace topkv
