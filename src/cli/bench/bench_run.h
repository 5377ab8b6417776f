// What `topkv bench` measures: attention alone, over generated rows (bench_rows.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/bench/bench_rows.h"
#include "src/cli/flags/bench_options.h"
#include "src/cli/terminal/progress_bar.h"
#include "topkv/session.h"

namespace topkv::cli {

/// Decoding through one index with one k.
struct DecodeResult {
  std::string index;
  std::string k;
  std::int64_t sessions = 1;  ///< stepped together, a token each
  double build_seconds = 0;
  double open_seconds = 0;  ///< of all sessions: codes go to the device with the first
  std::int64_t index_bytes = 0;
  std::vector<double> token_seconds;   ///< of each step timed, all measured layers together
  std::vector<StepTimes> layer_times;  ///< per layer, summed over the steps timed
  double rows_per_head = 0;            ///< retrieved per token, layer that retrieves and query head
  std::int64_t coded_tokens = 0;       ///< of each session's own, in the end
  std::int64_t key_bytes = 0;          ///< per token, that exact search reads; 0 for other indices
  std::int64_t row_bytes = 0;          ///< per token, of rows attended: retrieved, window, sinks

  double median() const { return quantile(0.5); }
  double p90() const { return quantile(0.9); }
  /// Of a step, all measured layers together: the mean of one part of StepTimes, and of the step.
  double mean_of(double StepTimes::*part) const;
  double mean() const;

 private:
  double quantile(double part) const;
};

/// Prefill in one mode.
struct PrefillResult {
  Prefill mode = Prefill::dense;
  std::int64_t tokens = 0;    ///< that were timed, the last ones of the context
  double attend_seconds = 0;  ///< all measured layers together, storing rows included
  double flop = 0;            ///< 4 x head_dim per query head and visible row
};

struct BenchReport {
  std::string what;  ///< "decode" or "prefill"
  BenchOptions bench_options;
  Device device;
  std::int64_t rows_bytes = 0;
  double rows_seconds = 0;    ///< that making the rows took
  double read_bandwidth = 0;  ///< bytes per second of host memory, all threads
  std::vector<AttentionMass> mass;
  std::vector<DecodeResult> decode;
  std::vector<PrefillResult> prefill;
};

BenchReport run_bench_decode(const BenchOptions& bench_options, const Device& device,
                             ProgressBar& progress);
BenchReport run_bench_prefill(const BenchOptions& bench_options, const Device& device,
                              ProgressBar& progress);

}  // namespace topkv::cli
