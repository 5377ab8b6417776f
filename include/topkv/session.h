// A session: one reader of a frozen context, with its own question and generated tokens.
//
// For every token and layer, attention is taken over three disjoint sets of earlier tokens, under
// one softmax (see attention.h): the first `sinks`, the last `window` (both exact), and the k rows
// that the index finds among the rest. Tokens of the session that leave the window are searched
// too, in the session's own rows (with a tail, or where codes are scanned, they are all attended;
// with both, once they are 2,048, or 12,288 without a GPU, codes stand for those that are not found
// of them, as of the context's); the context never changes.
//
// With AttentionShape::chunk_len a token has up to three queries, each of which meets its own range
// of positions: sinks, window and what is found are then each query's within its range, k rows for
// each, and all of them are under one softmax. What is said below of a query head (the rules, the
// tail and its figures) is so of each of a token's queries.
//
// What is not found is left out, or a *tail* stands for it: an estimate of the attention over all
// other rows of the context, made of codes of a few bytes (see the README for what that changes).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "topkv/context.h"
#include "topkv/device.h"

namespace topkv {

/// Who chooses rows.
enum class SelectBy : std::uint8_t {
  query_head,  ///< each query head attends its own top k
  group,       ///< the heads of a group share k rows: of the k best of any head, those with the
               ///< largest sum of the heads' softmax weights
};

/// How many rows each layer retrieves, per query head or group.
/// (Synk et al. 2025, §4.4, compare uniform and rising schedules of equal sum.)
struct TopK {
  enum class Schedule : std::uint8_t { same, uniform_sum, linear_sum, list };

  Schedule schedule = Schedule::same;
  std::int64_t value = 64;              ///< same: k of each layer; *_sum: sum over the layers
  std::vector<std::int64_t> list = {};  ///< list: k of each layer

  static TopK same(std::int64_t k) { return {Schedule::same, k, {}}; }
  /// The sum spread evenly over the layers.
  static TopK uniform_sum(std::int64_t sum) { return {Schedule::uniform_sum, sum, {}}; }
  /// Rising linearly from about 0 in the first layer, k_l proportional to l + 1.
  static TopK linear_sum(std::int64_t sum) { return {Schedule::linear_sum, sum, {}}; }
  static TopK per_layer(std::vector<std::int64_t> ks) { return {Schedule::list, 0, std::move(ks)}; }

  /// "64", "64,32,16,…", "uniform:512", "linear:512". Throws InvalidArgument.
  static TopK parse(std::string_view text);

  /// k of each layer, every one at least 1; sums are met exactly. Throws InvalidArgument when a k
  /// is below 1, a list has another length, or a sum is below the number of layers.
  std::vector<std::int64_t> resolve(std::int64_t layers) const;
};

struct RetrievalOptions {
  // Options that change results.
  /// Spec of an index that the context has. Codes that can have a tail ("codes:k=16,v=8"), with
  /// that or none and select_by query_head are *scanned*: one pass chooses rows by their codes
  /// alone, and all heads of a group attend what any of them found. A CUDA device does that itself,
  /// with v=0 too, up to k=64 (k=32 of heads above 128 dims), heads of at most 256 dims, groups of
  /// at most 8 and 64 KV heads: the context's codes are copied to its memory for the first such
  /// session. Otherwise the host searches, and scores what an index proposes again exactly.
  ///
  /// With quest, sparq, retroinfer and squeezed (of one level) a CUDA device chooses pages, rows or
  /// clusters for a step of one token of one session: what stands for keys is copied to its memory
  /// likewise, and the host makes rows of what was chosen. Of heads of 64 or 128 dims, groups of at
  /// most 16 and up to 262,144 pages, rows or clusters of a head (32,768 before compute capability
  /// 9.0). Scores for that are of queries, and centroids, in bf16: rows that score alike may change
  /// places; squeezed with s takes them in float32, as the host does.
  ///
  /// Where the device has no room for what it is to keep, codes or the others, the session is
  /// refused: OutOfMemory says how many bytes are wanted and free. host_search below leaves the
  /// search to the host.
  std::string index = "exact";
  /// Rows retrieved per layer; above the context: all of them. A CUDA device's scan finds about so
  /// many for each query head, as a sample of up to 32,768 keys tells (all keys where there are
  /// few), the host's about twice as many, for codes misorder keys that score alike.
  TopK k = TopK::same(64);
  /// The host searches where a CUDA device could, and nothing that stands for keys takes the
  /// device's memory. Slower: many times with codes, some times with the others.
  bool host_search = false;
  SelectBy select_by = SelectBy::query_head;
  /// What stands for the rows of the context that are not found: spec of an index that the context
  /// has and that codes values too ("codes:k=16,v=8"); "mean", which the context must have
  /// likewise: their mean value, with the mass that keys' codes tell; "none"; or "": what the index
  /// above has. With a tail all of the session's own tokens are attended, unless they are scanned
  /// too: where codes are, without a rule below, those that have left the window are laid out in
  /// codes from 2,048 on (12,288 without a GPU), learned on themselves, and k of them are found for
  /// each query head.
  std::string tail = {};
  /// Two rules for sessions with a tail, which tells what they need to know of the rows that were
  /// not found; none of them: k rows. Each query head (each group, where its heads share their
  /// rows: with SelectBy::group, and in scans) of a token goes its own way, by further searches or
  /// scans.
  ///
  /// A share of the attention, between 0 and 1: a sixteenth of k rows where these, with sinks,
  /// window and the session's own, hold so much of it by the tail's estimate; else k.
  std::optional<double> mass = {};
  /// Above 0: where a layer's output for a token is expected to be off by more, as |out - dense| /
  /// |dense| over all its heads, those heads that have more than their part of the error retrieve
  /// sixteen times as many rows, and again while that is a sixteenth of the context at most; then
  /// all. The true error may be several times the expected one (see TailFigures::error).
  std::optional<double> error = {};
  std::int64_t dense_layers = 0;  ///< the first n layers attend every token
  std::int64_t window = 1024;     ///< last tokens attended exactly, the query's own included; >= 1
  std::int64_t sinks = 4;         ///< first tokens attended exactly; >= 0

  // Options that change cost only.
  std::int64_t capacity = 16384;  ///< tokens of its own that the session can take
  /// Bytes that rows of `capacity` tokens may take; 0: what the machine has free. Checked when the
  /// session is made.
  std::int64_t memory_budget = 0;
  bool measure_recall = false;  ///< compare every search with exact search; makes steps slower
};

/// Where the time of a session's steps in one layer went, in seconds summed over the session's
/// life, by the host's clock. What runs on a device beside the host's work is not in it. Where a
/// CUDA device scans codes for one token, a step is given to it whole, and its window and merge are
/// no time of the host's: q_out is from the end of the step before, or the call.
struct StepTimes {
  double q_out = 0;   ///< q, k, v from the device: its work so far, and the copy
  double append = 0;  ///< rows to the session's own store, in layer 0 now and then codes of them;
                      ///< beside search where a CUDA device scans for one token
  double window = 0;  ///< attention over sinks and window, or all rows of a dense layer; on a
                      ///< device: giving it those rows that are not resident there
  double search = 0;  ///< or a scan of codes, its tail included; or waiting for a device's, or for
                      ///< its choice
  double attend = 0;  ///< attention over the rows found, on the host
  double tail = 0;    ///< estimating the attention over all others, on the host, where no scan
                      ///< does; the session's own rows (in attend where a CUDA device scans for one
                      ///< token)
  double merge = 0;   ///< merging it; on a device: giving it that work

  double total() const { return q_out + append + window + search + attend + tail + merge; }
};

/// How good a layer's attention with a tail was, as far as can be told without dense attention:
/// sums over the session's life, parts of steps that failed among them. (Of layers and sessions
/// without a tail nothing is known.)
struct TailFigures {
  std::int64_t heads = 0;  ///< (token, query head) pairs that are summed up; without a tail none
  /// Their shares of attention in rows attended as they are: sinks, window, those that were found.
  double exact_mass = 0;
  /// The sum of the expected |out - dense| / |dense|. It takes codes' errors as independent. The
  /// true error may be several times as large: once 0.132 beside 0.031
  /// (docs/explanation/evaluation.md).
  double error = 0;

  TailFigures& operator+=(const TailFigures& other) {
    heads += other.heads;
    exact_mass += other.exact_mass;
    error += other.error;
    return *this;
  }
  /// Of a pair; 0 where there are none.
  double mean_exact_mass() const { return heads > 0 ? exact_mass / static_cast<double>(heads) : 0; }
  double mean_error() const { return heads > 0 ? error / static_cast<double>(heads) : 0; }
};

/// What a session did, summed over its life.
struct SessionStats {
  std::int64_t steps = 0;  ///< (token, layer) pairs attended
  /// Rows attended beyond window and sinks, over query heads; where codes are scanned, of the
  /// context.
  std::int64_t rows_retrieved = 0;
  // With RetrievalOptions::mass or error: (token, layer, query head) triples that were given more
  // rows than at first, and those of them that attended all.
  std::int64_t retrieved_more = 0;
  std::int64_t went_dense = 0;
  double search_seconds = 0;
  double attend_seconds = 0;
  /// Of the session's own tokens, so many now have codes, the first ones (RetrievalOptions::tail).
  /// 0 again in a fork, which attends all of its own until it has some more.
  std::int64_t coded_tokens = 0;
  /// What these codes take of the host's memory. Tokens that are forgotten are in it until there
  /// are other codes.
  std::int64_t coded_bytes = 0;
  /// Where a device scans codes, or chooses by what stands for keys: what that takes of its memory,
  /// that of the context for all sessions together.
  std::int64_t device_index_bytes = 0;
  // With measure_recall: rows of the context that exact search found, and how many of these the
  // index found too. Their ratio is the recall. (Of a scan that a rule asked for: as many as it was
  // asked for.)
  std::int64_t exact_rows = 0;
  std::int64_t exact_rows_found = 0;
  /// Likewise by mass: of the softmax weight of those rows (over them alone), the share in those
  /// that were found too. How many queries had 0, 1, … 100 percent, rounded down: an average hides
  /// the few that lose what was asked for.
  std::array<std::int64_t, 101> mass_found = {};
};

/// Bytes of the device's memory that codes, or what else stands for keys, of a context of so many
/// tokens (at least one) would take with these options, about, for all its sessions together: 0
/// where the host searches. A session that finds less free is refused (RetrievalOptions::index).
/// (Windows, and what a step works on, come besides.) Throws InvalidArgument for an index or a tail
/// that is none.
std::int64_t device_index_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                std::int64_t tokens, const Device& device);

/// One thread at a time; different sessions are independent.
class Session {
 public:
  /// On a CUDA device all sessions over a context have its window and sinks there together; steps
  /// take memory for rows of new tokens (or throw OutOfMemory), and for codes of these if they can.
  /// Throws InvalidArgument on options that cannot work with this context, OutOfMemory: for want of
  /// host memory, of the device's for window and sinks, or for what stands for keys (unless
  /// host_search).
  Session(std::shared_ptr<const Context> context, RetrievalOptions options = {},
          const Device& device = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// A session that goes on from here with the same own tokens. Copies only the session's own rows.
  Session fork() const;

  /// The session's own rows as a context of their own, whose token 0 stood at position
  /// context().tokens(): a copy, without any index but exact, for save_context to keep beside the
  /// context's file. Safe as fork() is. Throws InvalidArgument when layers differ in tokens,
  /// OutOfMemory, and Error where the session's device no longer works.
  std::shared_ptr<const Context> own_rows() const;

  /// Goes on where the session was that gave these rows: what follows is what a fork of that one
  /// gives, bit for bit. Both are over the same context, or one loaded from its file: that is for
  /// the caller to know (ContextOrigin may say it). Throws InvalidArgument when this session has
  /// tokens of its own, or the rows are of other attention or another dtype, came after another
  /// number of tokens (rows out of a file of topkv 0.1.0 do not say), have other scales than the
  /// context's (q8, q4), or are beyond its capacity; OutOfMemory and Error of the device. The
  /// session is then as it was. Rows are taken to be finite: load_context has checked them, but
  /// for those it mapped (ContextLoadOptions::mapped), which verify_context checks.
  void resume(const Context& own_rows);

  /// The step for an application that owns its network: takes q, k, v of the next tokens of one
  /// layer, at positions tokens() and on, and gives attention over everything before and including
  /// each of them. Every layer must be given the same tokens in turn, layer 0 first.
  /// A step without K and V (kv_tokens 0) only reads, 256 tokens at a time from position tokens()
  /// on; one with K and V has those of all its tokens.
  /// On a CUDA device the call returns before out is there: what reads it is to be given to the
  /// same stream, or to wait for that. Where the device scans codes for one token, a thread of the
  /// session attends the rows that it lists after the call has returned (unless there is one thread
  /// alone, recall is measured, or the token meets several chunks; the results are the same but for
  /// rounding). The device then waits for that thread, and the thread for nothing of the caller's,
  /// who may wait for the device, and call its driver, from anywhere. Should the thread fail (the
  /// device, memory), what the step gives is NaN, and the next call, stats() or step_times() throws
  /// Error. Throws InvalidArgument when a pointer is null, a layer is out of turn, a value is not
  /// finite or capacity is exceeded. Whatever it throws, the layer is then as it was before: give
  /// it its tokens again, or take the others' back with truncate(). Once in 1,024 tokens, or more
  /// of many, a step of layer 0 makes codes of the session's own (RetrievalOptions::tail), which
  /// takes 16 cores 0.2 to 0.5 s for up to 7,000 tokens of 28 layers with 4 KV heads.
  void attend(const AttentionStep& step);
  void attend(std::int64_t layer, const float* q, const float* k, const float* v, float* out,
              std::int64_t tokens = 1) {
    attend({.layer = layer, .tokens = tokens, .q = q, .k = k, .v = v, .out = out});
  }

  /// The same for several sessions over one context, on one device: tensors are theirs one after
  /// the other, [sessions, tokens, …] each, and every session takes as many tokens, each at its own
  /// position. Keys and codes are read once for several sessions (with the same index and k). Each
  /// gives what it would give alone, but for rounding; times and seconds are divided evenly among
  /// them. (With chunks, once one of them is beyond the first, each is stepped by itself.) Throws
  /// InvalidArgument, too, when there is no session, one is there twice, or contexts
  /// (or devices) differ. Whatever it throws, all of them are then as they were before, but that
  /// they may have made codes of their own tokens, each some 60 MiB of a CUDA device's memory.
  static void attend_together(std::span<Session* const> sessions, const AttentionStep& step);
  /// Throws where attend_together would because of the sessions, whatever the step.
  static void check_together(std::span<Session* const> sessions);

  /// Forgets the session's own tokens from number `own_tokens` on, in all layers: speculative
  /// tokens that were rejected. Throws InvalidArgument when it has fewer.
  void truncate(std::int64_t own_tokens);

  /// Tokens before the next one: the context's and the session's own (those of layer 0). These two
  /// may be asked for while another thread is in attend.
  std::int64_t tokens() const;
  /// The session's own tokens.
  std::int64_t own_tokens() const;
  const Context& context() const;
  const RetrievalOptions& options() const;
  const Device& device() const;
  /// These two wait for the steps that were given, and stay as they are until the next; they and
  /// fork() are safe from many threads.
  const SessionStats& stats() const;
  /// [layers]
  const std::vector<StepTimes>& step_times() const;
  /// [layers]. On a CUDA device it waits for the steps that were given.
  std::vector<TailFigures> tail_figures() const;

 private:
  struct State;
  explicit Session(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace topkv
