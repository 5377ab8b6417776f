// A session: one reader of a frozen context, with its own question and generated tokens.
//
//     topkv::Session session(context, {.index = "exact", .k = topkv::TopK::same(64)});
//     session.attend(layer, q, k, v, out);        // one token, each layer in turn, layer 0 first
//
// For each token and layer, attention is taken over disjoint sets of earlier tokens, under one
// softmax (see attention.h):
//
// - the first `sinks` tokens and the last `window` tokens, exactly;
// - the k rows of the context that the index finds among all others, exactly;
// - the rows of the context that the index does not find: they are left out, or a *tail* estimates
//   the attention over them from codes of a few bytes each.
//
// The context never changes. The session keeps rows of its own tokens. Own tokens that have left
// the window take part as follows:
//
// - Without a tail and without scanned codes, they are searched exactly, and the k best rows of the
//   context and the session together are attended. With the index `none` they are left out.
// - With a tail, or with scanned codes, all own tokens are attended.
// - With both, they get codes of their own once they are many; see RetrievalOptions::tail.
//
// A layer with a trained indexer (AttentionShape::indexer) attends the choice of the indexer alone:
// no sinks, no window, no tail, whatever the options say. The indexer chooses among the tokens of
// the context and the session's own tokens.
//
// With AttentionShape::chunk_len above 0, a token has up to three queries, and each query sees a
// range of positions of its own. Sinks, window and k rows then apply to each query within its
// range, still under one softmax. Statements about a query head below hold for each query of the
// token.
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

class DraftReading;
class PastTokens;

/// Which heads choose rows together.
enum class SelectBy : std::uint8_t {
  query_head,  ///< each query head attends its own k best rows
  group,  ///< the heads of a group share k rows. These are chosen among the k best rows of each
          ///< head, by the sum of the heads' softmax weights
};

/// How many rows each layer retrieves for each query head or group. Synk et al. 2025, section 4.4,
/// compare uniform and rising schedules of equal sum.
///
/// - same: every layer retrieves `value` rows.
/// - uniform_sum: the layers retrieve `value` rows in all, spread evenly.
/// - linear_sum: the layers retrieve `value` rows in all, rising linearly.
/// - list: layer l retrieves list[l] rows.
struct TopK {
  enum class Schedule : std::uint8_t { same, uniform_sum, linear_sum, list };

  Schedule schedule = Schedule::same;
  std::int64_t value = 64;              ///< same: k of each layer; sums: the sum over all layers
  std::vector<std::int64_t> list = {};  ///< list: k of each layer

  /// Returns a schedule that retrieves k rows in every layer.
  static TopK same(std::int64_t k) { return {Schedule::same, k, {}}; }
  /// Returns a schedule that spreads a sum of rows evenly over the layers.
  static TopK uniform_sum(std::int64_t sum) { return {Schedule::uniform_sum, sum, {}}; }
  /// Returns a schedule that spreads a sum of rows over the layers with k of layer l proportional
  /// to l + 1.
  static TopK linear_sum(std::int64_t sum) { return {Schedule::linear_sum, sum, {}}; }
  /// Returns a schedule that retrieves ks[l] rows in layer l.
  static TopK per_layer(std::vector<std::int64_t> ks) { return {Schedule::list, 0, std::move(ks)}; }

  /// Returns the schedule of a text: "64", "64,32,16,…" with one number for each layer,
  /// "uniform:512" or "linear:512". Throws InvalidArgument for another text and for a number that
  /// is below 1.
  static TopK parse(std::string_view text);

  /// Returns k of each layer. Each k is at least 1, and sums are met exactly. Throws
  /// InvalidArgument when a k is below 1, a list has another length, or a sum is below the number
  /// of layers.
  std::vector<std::int64_t> resolve(std::int64_t layers) const;
};

/// A bound for the error of a query head's output that holds with a probability, as a random sample
/// estimates it (RetrievalOptions::guarantee). The error is |out - dense| / |dense|, where dense is
/// the head's attention over all rows.
struct Guarantee {
  double epsilon = 0.1;  ///< the largest error; above 0 and below 1
  double delta = 0.05;   ///< the probability of a larger error; above 0 and below 1
};

/// The tokens from which on a step of a session can be a turn (RetrievalOptions::turns).
inline constexpr std::int64_t least_turn_tokens = 256;

/// Options of a session. The options up to `turns` change results; the others change cost alone.
struct RetrievalOptions {
  // Options that change results.
  /// The spec of the index that finds rows. The context must have it.
  ///
  /// Codes can be *scanned*: one pass over them chooses rows by the codes alone and estimates the
  /// tail. All heads of a group then attend the rows that any of them found. Codes are scanned when
  /// all of these hold:
  /// - select_by is query_head, and the tail is the index's own or "none".
  /// - The context has at most 2^30 tokens.
  /// - On the host, the index has codes of values (v above 0).
  /// - On a CUDA device, host_search is false. A key's code has at most 64 bytes, a value's at most
  ///   256 bits. The spec may have k=64 for heads of up to 128 dims, k=32 up to 256, and k=16 with
  ///   v=8 above.
  /// - On a CUDA device, head_dim is a multiple of 4 and at most 512, groups have at most 8 heads,
  ///   and there are at most 64 KV heads.
  ///
  /// A CUDA device scans codes in its own memory. They are copied there for the first such session
  /// of a context.
  ///
  /// With quest, sparq, retroinfer, and squeezed with coarse=0, a CUDA device chooses pages, rows
  /// or clusters by key summaries in its memory. The host then makes rows of the choice and attends
  /// them. The summaries are copied there for the first such session of a context. The device
  /// chooses when all of these hold:
  /// - The step has one token of one session, and is not a further round of a rule (mass, error).
  /// - Heads have 64 or 128 dims, and groups have at most 16 heads.
  /// - A head has at most 262,144 pages, rows or clusters, or 32,768 before compute capability 9.0.
  ///
  /// Such a choice scores queries and centroids in bf16, so that rows that score alike may change
  /// places. With s, squeezed scores them in float32, as the host does.
  ///
  /// In all other cases the host searches. It scores the candidates of an index again by the stored
  /// keys.
  ///
  /// A device that has no room for the codes or key summaries refuses the session with OutOfMemory,
  /// which carries the wanted and the free bytes. Set host_search to search on the host instead.
  std::string index = "exact";
  /// The number of rows that each layer retrieves, for each query head or group. A k above the
  /// number of rows finds every row. The command takes 128, with IndexSpec::default_for
  /// (docs/measurements/models.md).
  ///
  /// A scan finds about k rows for each query head on a CUDA device. It takes its threshold from
  /// the scores of up to 32,768 sampled keys. On the host a scan finds about 2 k rows, because
  /// codes misorder keys that score alike.
  TopK k = TopK::same(64);
  /// Leaves the search to the host although a CUDA device could do it. Codes and key summaries then
  /// take none of the device's memory. Searches are slower: many times with codes, a few times with
  /// quest, sparq, retroinfer and squeezed.
  bool host_search = false;
  /// Whether each query head chooses rows for itself, or the heads of a group together.
  SelectBy select_by = SelectBy::query_head;
  /// The tail: it estimates the attention over the rows of the context that are not found.
  ///
  /// - "": the tail of the index, if it has one; else none.
  /// - "none": no tail.
  /// - A spec with a tail that the context has, such as "codes:k=16,v=8" or "mean".
  ///
  /// With a tail, all of the session's own tokens are attended. When codes are scanned with their
  /// tail and no rule (mass, error) is set, own tokens get codes, too. That begins once 2,048 own
  /// tokens have left the window, or 12,288 without a GPU. The codes are learned on the own tokens,
  /// and scans find k of these tokens for each query head.
  std::string tail = {};
  /// A rule for how many rows are enough: a share of the attention, above 0 and below 1. Not set:
  /// each query head retrieves k rows at once. The rule needs a tail.
  ///
  /// A query head first retrieves k / 16 rows, rounded up. If these rows, with sinks, window and
  /// the session's own rows, hold less than this share by the tail's estimate, the head retrieves k
  /// rows.
  ///
  /// Heads that choose rows together decide together: the heads of a group with SelectBy::group, in
  /// scans, and with methods that choose for a group. The tokens of a step decide one by one,
  /// except with squeezed, which chooses for a step as a whole.
  std::optional<double> mass = {};
  /// A rule for how many rows are enough: a bound, above 0, for the expected error of a layer's
  /// output for a token. The error is |out - dense| / |dense| over all heads. Not set: no such
  /// rule. The rule needs a tail.
  ///
  /// The rule works in rounds while the expected error of a token is above the bound. In each
  /// round, a head with more than its equal part of the error retrieves 16 times the rows of the
  /// round before. It attends every row of the context instead when that is more than a sixteenth
  /// of the context.
  ///
  /// Heads that choose rows together decide together: the heads of a group with SelectBy::group, in
  /// scans, and with methods that choose for a group. The tokens of a step decide one by one,
  /// except with squeezed, which chooses for a step as a whole.
  ///
  /// The true error may be larger than the expected error (TailFigures::error).
  std::optional<double> error = {};
  /// A rule for how many rows are enough: a bound for the error of each query head's output, and
  /// the probability of a larger error. Not set: no such rule. See vAttention (Desai et al. 2025,
  /// arXiv:2510.05688).
  ///
  /// A query head attends sinks, window, all of the session's own tokens and the k rows that the
  /// index finds. A random sample of all other rows stands for these. It grows until the bound
  /// holds by how far the sampled rows differ. The rule attends all rows when it needs that many.
  ///
  /// The probability is over the samples, as the central limit theorem estimates it. Rows of large
  /// weight that neither the index nor the sample finds break the bound: a worse index costs more
  /// sampled rows, and leaves more of this risk. Samples depend on the position, the layer and the
  /// query head alone. An equal step gives equal results.
  ///
  /// Codes are searched, not scanned. The session has no tail: "" means "none". The rule refuses
  /// another tail, mass, error, CUDA devices, and shapes with chunk_len or keys_are_values.
  std::optional<Guarantee> guarantee = {};
  /// First layers of any kind that attend every token, except layers with a trained indexer; >= 0.
  std::int64_t dense_layers = 0;
  std::int64_t window = 1024;  ///< last tokens attended exactly, the query's own included; >= 1
  std::int64_t sinks = 4;      ///< first tokens attended exactly; >= 0
  /// In layers with a trained indexer, the number of blocks of index keys that a token chooses:
  /// IndexerShape::top of the session's steps; >= 1. Not set: the context's.
  std::optional<std::int64_t> indexer_top = {};
  /// In layers with a trained indexer, the number of last blocks that a token always attends:
  /// IndexerShape::local_blocks of the session's steps; 0 to `top`. Not set: the context's.
  std::optional<std::int64_t> indexer_local_blocks = {};
  /// How *turns* are read: steps with K and V of least_turn_tokens tokens or more. Not set: as all
  /// other steps, where each token finds rows for itself.
  ///
  /// Set: a turn is read as ContextBuilder::attend reads text, after the rows of the context and of
  /// the session. Its tokens attend as the mode says:
  /// - dense: all earlier tokens;
  /// - sparse: window, sinks and the blocks of keys that they choose, with the window and sinks of
  ///   PrefillAttention;
  /// - automatic: as resolve_prefill says for the length of the text up to the turn's end. On a
  ///   CUDA device a turn is dense if the memory that is free does not hold the rows of one layer,
  ///   and no turn if it does not hold what a dense one takes.
  ///
  /// The mode window is refused, because such a turn would not meet the context. Index, k, tail,
  /// mass, error and guarantee have no part in turns; dense_layers attend all tokens.
  ///
  /// Blocks are counted in positions from the begin of the context. In sparse mode, text that is
  /// read as a context and then as turns attends the same keys as in one prefill, if steps end at
  /// multiples of 128 positions.
  ///
  /// These steps are no turns, and are read as other steps are:
  /// - steps without K and V;
  /// - steps of a layer out of turn, or with other tokens than the layer before them had.
  ///
  /// A step of more than 2,048 tokens is read in parts, which end at multiples of 128 positions. On
  /// a CUDA device a turn takes the memory of a prefill of such a part, beside the session's own.
  /// The next call that changes the session gives it back. A step for which there is no memory
  /// throws OutOfMemory, and leaves the layer as it was.
  std::optional<PrefillAttention> turns = {};

  // Options that change cost only.
  std::int64_t capacity = 16384;  ///< own tokens that the session can hold; >= 1
  /// Bytes that rows of `capacity` tokens may take; 0 means the memory that the machine has free.
  /// Checked when the session is made.
  std::int64_t memory_budget = 0;
  /// The most bytes of a CUDA device's memory that rows of the context may take. 0: the rows stay
  /// in host memory alone.
  ///
  /// The rows of the first layers that fit are copied to the device, as they are stored. The device
  /// itself attends the rows that a scan of one token finds in these layers, and does not wait for
  /// the host. The results differ from the host's by rounding. All other steps attend rows on the
  /// host: steps of several tokens or sessions, and scans that may list more than 4,096 rows of a
  /// KV head. A scan lists at most 4 k rows for each query head of the group, and 256 more.
  ///
  /// Sessions over one context that have rows of the same layers share them. The first such session
  /// copies them, and throws OutOfMemory if the device has no room for them. They stay until the
  /// last such session ends. Refused unless the device is CUDA and codes are scanned without `mass`
  /// and `error`.
  std::int64_t device_rows = 0;
  /// Compares every search with exact search, for SessionStats::exact_rows and the members behind
  /// it. Steps are slower.
  bool measure_recall = false;
  /// Sums up the attention that each position gets, for Session::attention_by_position(). Steps
  /// score the rows that they attend once more, and Draft::automatic drafts nothing.
  ///
  /// Throws Unsupported on a CUDA device, with mass, error or guarantee, with dual chunk attention
  /// (AttentionShape::chunk_len), and with a trained indexer.
  bool measure_attention = false;
};

/// Times of a session's steps in one layer: seconds by the host's clock, summed over the session's
/// life. Work that a device does beside the host's is not counted.
///
/// A CUDA device that scans codes for one token is given the step whole. Its attention over the
/// window and its merge then cost the host no time.
struct StepTimes {
  /// Waiting for q, k and v from the device: its earlier work, and the copy. When a CUDA device
  /// scans codes for one token, the wait counts from the end of the step before if the call came
  /// earlier.
  double q_out = 0;
  /// Adding rows to the session's own store. In layer 0 it includes making codes of own tokens.
  /// When a CUDA device scans codes for one token, this time runs beside `search`.
  double append = 0;
  /// Attention over sinks and window, or over all rows of a dense layer. On a CUDA device: handing
  /// it the rows that are not resident there.
  double window = 0;
  /// A search, or a scan of codes with its tail. On a CUDA device: waiting for its scan or choice.
  double search = 0;
  double attend = 0;  ///< attention over the rows found, on the host; all of a turn's time
  /// The host's estimate of the attention over all other rows, when no scan makes it, and attention
  /// over the session's own rows. When a CUDA device scans codes for one token, `attend` counts the
  /// own rows.
  double tail = 0;
  double merge = 0;  ///< merging partials; on a CUDA device: handing it that work

  /// Returns the sum of all members.
  double total() const { return q_out + append + window + search + attend + tail + merge; }
};

/// How near a layer's attention with a tail came to dense attention, as far as that can be known
/// without dense attention. Sums over the session's life; a step that failed may have added to
/// them. Layers and sessions without a tail add nothing.
struct TailFigures {
  std::int64_t heads = 0;  ///< the number of (token, query head) pairs that are summed up
  /// The sum of the share of attention that rows attended exactly hold: sinks, window, and rows
  /// that were found.
  double exact_mass = 0;
  /// The sum of the expected error, |out - dense| / |dense|. For codes it has two parts:
  /// independent errors of codes, and the error of key codes that is correlated with the values. A
  /// tail from a context file of 0.1.0 has the first part alone. The true error may be larger
  /// (docs/explanation/evaluation.md).
  double error = 0;

  /// Adds the sums of other figures.
  TailFigures& operator+=(const TailFigures& other) {
    heads += other.heads;
    exact_mass += other.exact_mass;
    error += other.error;
    return *this;
  }
  /// Returns the mean exact_mass of a (token, query head) pair; 0 when there are no pairs.
  double mean_exact_mass() const { return heads > 0 ? exact_mass / static_cast<double>(heads) : 0; }
  /// Returns the mean expected error of a (token, query head) pair; 0 when there are no pairs.
  double mean_error() const { return heads > 0 ? error / static_cast<double>(heads) : 0; }
};

/// Counts of a session's work, summed over its life. A fork begins with the counts of the session
/// that it was made of. Turns (RetrievalOptions::turns) add to attend_seconds alone;
/// Session::turn_shares counts their tokens.
struct SessionStats {
  std::int64_t steps = 0;  ///< (token, layer) pairs that were attended
  /// The part of `steps` in layers that retrieve rows: layers with full attention, without the
  /// first RetrievalOptions::dense_layers, and layers with a trained indexer.
  std::int64_t retrieving_steps = 0;
  /// Rows attended beyond sinks and window, summed over query heads. With a tail, a scan or
  /// RetrievalOptions::guarantee, only rows of the context count; else the session's own rows
  /// count, too. In a layer with a trained indexer, all rows count.
  std::int64_t rows_retrieved = 0;
  /// With RetrievalOptions::guarantee: the part of rows_retrieved that was sampled, or attended
  /// because the rule needed all rows.
  std::int64_t rows_sampled = 0;
  /// With RetrievalOptions::mass or error: (token, layer, query head) triples that retrieved more
  /// rows than in the first round.
  std::int64_t retrieved_more = 0;
  /// With RetrievalOptions::mass, error or guarantee: (token, layer, query head) triples that
  /// attended all rows of the context because of the rule.
  std::int64_t went_dense = 0;
  double search_seconds = 0;  ///< time of searches and scans, or of waiting for a device's
  double attend_seconds = 0;  ///< all other time of steps; measuring recall does not count
  /// The number of the session's own tokens that have codes now, from the first own token on
  /// (RetrievalOptions::tail). A fork begins with 0: it attends all of its own tokens until it has
  /// some more.
  std::int64_t coded_tokens = 0;
  /// Host memory of the codes of own tokens. It includes codes of tokens that were forgotten, until
  /// the codes are made anew.
  std::int64_t coded_bytes = 0;
  /// Memory of the recurrent states that the session keeps of its own tokens: the last ones, and
  /// snapshots. Forks share it until they go on.
  std::int64_t states_bytes = 0;
  /// Host memory that a draft model keeps of the session's text (DraftModel), or the model's own
  /// draft layer (Model::draft_layer_bytes). A fork begins with 0: it keeps nothing of it.
  std::int64_t draft_bytes = 0;
  /// Memory of a CUDA device that codes or key summaries take. The context's part is there once for
  /// all sessions over it.
  std::int64_t device_index_bytes = 0;
  /// Memory of a CUDA device that rows of the context take (RetrievalOptions::device_rows). It is
  /// there once for all sessions that share it.
  std::int64_t device_row_bytes = 0;
  /// With measure_recall: rows of the context that exact search found. In a scan that a rule asked
  /// for, exact search looks for the number of rows that the rule asked for.
  std::int64_t exact_rows = 0;
  /// With measure_recall: the part of exact_rows that the index found, too. Recall is
  /// exact_rows_found / exact_rows.
  std::int64_t exact_rows_found = 0;
  /// With measure_recall: recall by softmax weight, as a histogram over queries. Entry p counts the
  /// queries whose found rows hold p percent, rounded down, of the softmax weight of the rows that
  /// exact search found. A mean would hide the few queries that lose what matters.
  std::array<std::int64_t, 101> mass_found = {};

  /// Returns the mean rows_retrieved of a (token, layer, query head) triple, over all layers. Dense
  /// layers, and layers with a sliding window, count with 0 rows. Returns 0 before the first step.
  ///
  /// q_heads: the query heads of a layer (AttentionShape::q_heads), at least 1. With
  /// AttentionShape::chunk_len, the rows of all queries of a query head count for the head.
  double rows_per_head(std::int64_t q_heads) const { return mean_rows(steps * q_heads); }
  /// Returns the mean rows_retrieved of a (token, layer, query head) triple, over the layers that
  /// retrieve (retrieving_steps). Returns 0 when no layer does.
  ///
  /// q_heads: the query heads of a layer (AttentionShape::q_heads), at least 1. With
  /// AttentionShape::chunk_len, the rows of all queries of a query head count for the head.
  double rows_per_retrieving_head(std::int64_t q_heads) const {
    return mean_rows(retrieving_steps * q_heads);
  }

 private:
  double mean_rows(std::int64_t count) const {
    return count > 0 ? static_cast<double>(rows_retrieved) / static_cast<double>(count) : 0;
  }
};

/// Returns about how many bytes of a device's memory the codes or key summaries of a context would
/// take, with these options. All sessions over the context share them. Returns 0 when the host
/// would search. Windows, and the memory that steps work in, are not included.
///
/// tokens: the tokens of the context, at least 1.
///
/// A session that finds less memory free is refused (RetrievalOptions::index). Throws
/// InvalidArgument for an unknown index or tail.
std::int64_t device_index_bytes(const AttentionShape& shape, const RetrievalOptions& options,
                                std::int64_t tokens, const Device& device);

/// One reader of a context: it attends the context and the rows of its own tokens. One thread at a
/// time uses a session, except where a function says otherwise. Different sessions are independent.
class Session {
 public:
  /// Opens a session over a context.
  ///
  /// On a CUDA device, all sessions over a context share its window and sinks there. Later steps
  /// take memory for the rows of new tokens, or throw OutOfMemory. They take memory for codes of
  /// these tokens only if there is some.
  ///
  /// Throws InvalidArgument for a null context, and for options that are out of range or do not fit
  /// the context. Throws Unsupported for a trained indexer on a CUDA device. Throws OutOfMemory
  /// when one of these does not fit:
  /// - rows of `capacity` tokens, in host memory or RetrievalOptions::memory_budget;
  /// - window and sinks, in the device's memory;
  /// - codes or key summaries, in the device's memory, unless host_search is set.
  Session(std::shared_ptr<const Context> context, RetrievalOptions options = {},
          const Device& device = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  /// Returns a session that goes on from here with these own tokens. It shares the context and
  /// copies the session's own rows. Several threads may fork a session at once while no thread
  /// steps it. Throws as the constructor does.
  Session fork() const;

  /// Returns a copy of the session's own rows as a context of their own. Its token 0 stood at
  /// position context().tokens(), and it has no index but "exact". save_context can keep it beside
  /// the context's file; resume() reads it again.
  ///
  /// Several threads may call it at once while no thread steps the session. Throws InvalidArgument
  /// when layers differ in tokens, OutOfMemory, and Error when the session's device no longer
  /// works.
  std::shared_ptr<const Context> own_rows() const;

  /// Takes the own rows of another session, and goes on where that session was. All further results
  /// are equal to the results of a fork of that session, bit for bit.
  ///
  /// REQUIRES: both sessions are over one context, or over contexts loaded from one file. topkv
  /// does not check this; ContextOrigin may help. The rows are finite. load_context has checked
  /// rows that it read; verify_context checks rows that were mapped (ContextLoadOptions::mapped).
  ///
  /// Throws InvalidArgument when:
  /// - this session has tokens of its own;
  /// - the rows have another shape of attention or another dtype;
  /// - the rows came after another number of tokens, which files of topkv 0.1.0 do not say;
  /// - the rows have other scales or another bias of keys than the context (q8, q4);
  /// - the rows are more than this session's capacity.
  ///
  /// Throws OutOfMemory, and Error when the device fails. Whatever is thrown, the session is then
  /// as it was.
  void resume(const Context& own_rows);

  /// Attends the next tokens of one layer: the step for an application that owns its network.
  ///
  /// Takes q, k and v of the next tokens, at positions tokens() and on. Computes the attention of
  /// each token over all earlier tokens and itself. Give every layer the same tokens in turn, layer
  /// 0 first.
  ///
  /// A step has K and V of all its tokens, or of none. A step without K and V (kv_tokens 0) only
  /// reads and adds no rows. It is cut into parts of 256 tokens, and the tokens of each part are at
  /// positions tokens() and on.
  ///
  /// On a CUDA device the call returns before `out` is written. Work that reads `out` must be given
  /// to the step's stream, or wait for it.
  ///
  /// When the device scans codes for one token, a thread of the session attends the rows that it
  /// lists, after the call has returned. The device waits for that thread. The thread waits for
  /// nothing of the caller, which may wait for the device and call its driver from any thread. The
  /// call itself attends these rows, with results that differ by rounding alone, in these cases:
  /// - topkv has one thread alone;
  /// - measure_recall is set;
  /// - a rule is set (RetrievalOptions::mass, error);
  /// - the token meets several chunks (AttentionShape::chunk_len).
  ///
  /// If that thread fails, for want of memory or because of the device, the step's out is NaN. The
  /// next call of attend(), stats() or step_times() then throws Error, and the session refuses
  /// further steps.
  ///
  /// Throws InvalidArgument when a pointer is null, a layer is out of turn, a value is not finite,
  /// or the capacity is exceeded. Throws OutOfMemory when rows of new tokens find no memory.
  /// Whatever is thrown, the layer is then as it was before the call. Give it its tokens again, or
  /// take back the tokens of the other layers with truncate().
  ///
  /// A step of layer 0 may make codes of the session's own tokens (RetrievalOptions::tail). It does
  /// so once in 1,024 tokens, or more rarely when there are many. That takes 16 cores 0.2 to 0.5 s
  /// for up to 7,000 tokens of 28 layers with 4 KV heads.
  void attend(const AttentionStep& step);
  /// Attends the next `tokens` tokens of one layer, as attend(AttentionStep) does.
  ///
  /// - q, out: [tokens, q_heads, head_dim].
  /// - k, v: [tokens, kv_heads, head_dim].
  ///
  /// All are float32 and contiguous, in the memory of the session's device.
  void attend(std::int64_t layer, const float* q, const float* k, const float* v, float* out,
              std::int64_t tokens = 1) {
    attend({.layer = layer, .tokens = tokens, .q = q, .k = k, .v = v, .out = out});
  }

  /// Attends the next tokens of one layer for several sessions over one context, on one device.
  ///
  /// Each tensor of the step holds the tensors of the sessions, one after the other: [sessions,
  /// tokens, …]. Every session takes `tokens` tokens, each at its own position. Keys and codes are
  /// read once for all sessions with one index and k. Each session's result differs by rounding
  /// alone from the result of attend(). Times are divided evenly among the sessions.
  ///
  /// With chunks (AttentionShape::chunk_len), each session is stepped by itself once a session is
  /// beyond its first chunk.
  ///
  /// Throws as attend() does, and InvalidArgument when there is no session, a session is there
  /// twice, or contexts or devices differ. Whatever is thrown, all sessions are then as they were
  /// before the call, except that they may have made codes of their own tokens. Such codes take
  /// some 60 MiB of a CUDA device's memory for each session of a large model.
  static void attend_together(std::span<Session* const> sessions, const AttentionStep& step);
  /// Checks that attend_together can step these sessions. Throws InvalidArgument when there is no
  /// session, a session is null or there twice, contexts or devices differ, or a session refuses
  /// further steps.
  static void check_together(std::span<Session* const> sessions);

  /// Gives a layer with a recurrent state its next `tokens` own tokens: its state after them. The
  /// state has AttentionShape::state_size_of values, in host memory; they are copied. Call it
  /// before the attention of the same tokens in the first layer of attention, or after it.
  ///
  /// Throws InvalidArgument, and leaves the layer as it was, when:
  /// - the layer has no recurrent state;
  /// - the number of values differs, or a value is not finite;
  /// - the capacity is exceeded, or the layer gets ahead of other layers by a second step.
  void advance(std::int64_t layer, std::int64_t tokens, std::span<const float> state);
  /// Returns the recurrent state of a layer after the last token: the state of the context, until
  /// the layer gets own tokens. No value: there is no token at all. The view is valid until the
  /// session gets or forgets tokens. Throws InvalidArgument for a layer without a recurrent state.
  std::span<const float> state(std::int64_t layer) const;
  /// Keeps the present recurrent states in host memory, so that truncate() can come back to this
  /// token. Each snapshot takes the memory of all states. A session keeps 16 at most, and forgets
  /// the one whose loss costs least: snapshots lie closer together towards the end of the text.
  /// Forks and own_rows() keep snapshots too. Throws InvalidArgument when it is called during a
  /// step.
  void snapshot();
  /// Returns the most own tokens, at most `own_tokens`, that truncate() can keep. Rows that the
  /// session was given can go back to any token. Recurrent states can go back to a snapshot, to the
  /// token before the last advance(), and to 0, which is the end of the context.
  std::int64_t reachable(std::int64_t own_tokens) const;

  /// Keeps the session's first `own_tokens` own tokens and forgets all later ones, in all layers.
  /// It takes back speculative tokens that were rejected.
  ///
  /// Throws InvalidArgument when a layer has fewer tokens, and when a layer no longer has what it
  /// kept at this token: its recurrent state, or, after resume(), the rows of its sliding window
  /// (Context::first_row). The message names reachable(own_tokens): truncate to that, and
  /// give the tokens after it again.
  void truncate(std::int64_t own_tokens);

  /// Returns the number of tokens before the next one: the context's, and the session's own in
  /// layer 0. Another thread may call it while a thread is in attend().
  std::int64_t tokens() const;
  /// Returns the number of tokens before the next one of a layer: the context's, and the session's
  /// own in this layer. Throws InvalidArgument for a layer that the shape does not have.
  std::int64_t tokens(std::int64_t layer) const;
  /// Returns the number of the session's own tokens, in layer 0. Another thread may call it while a
  /// thread is in attend().
  std::int64_t own_tokens() const;
  const Context& context() const;
  /// Returns the options, with `index` and `tail` as specs that have all defaults spelled out.
  const RetrievalOptions& options() const;
  const Device& device() const;
  /// Returns the session's counts. Waits for the steps that were given; the counts then stay as
  /// they are until the next step. Several threads may call it at once while no thread steps the
  /// session.
  const SessionStats& stats() const;
  /// Returns the times of each layer: [layers]. Waits for the steps that were given; the times then
  /// stay as they are until the next step. Several threads may call it at once while no thread
  /// steps the session.
  const std::vector<StepTimes>& step_times() const;
  /// Returns the attention that each position got from the session's own tokens, the context's
  /// positions first: [tokens()]. It needs RetrievalOptions::measure_attention.
  ///
  /// The attention of a token to a position is a softmax weight: exp(score - lse), with the scores
  /// and the log-sum-exp of a query head. It is summed over tokens, layers with full attention and
  /// query heads. Positions that a step does not attend exactly get 0 from it: rows that are not
  /// found, and rows that only a tail estimates or samples. Tokens of turns
  /// (RetrievalOptions::turns) and layers with a sliding window add nothing.
  ///
  /// The sums of positions that truncate() takes away are forgotten. Attention from tokens that
  /// were taken away stays. A fork begins with the sums of the session that it was made of. Throws
  /// InvalidArgument without measure_attention.
  std::vector<double> attention_by_position() const;
  /// Sets all sums of attention_by_position() to 0.
  void reset_attention();
  /// Returns what the tokens of turns attended (RetrievalOptions::turns): [layers]. A layer whose
  /// tokens do not choose keys has none; in Prefill::automatic, tokens that are read densely count
  /// where they would choose later. Tokens that truncate() took away count. A fork begins with the
  /// shares of the session that it was made of.
  std::vector<PrefillShare> turn_shares() const;
  /// Returns the figures of each layer's tail: [layers]. On a CUDA device it waits for the steps
  /// that were given.
  std::vector<TailFigures> tail_figures() const;

 private:
  friend class DecodeLoop;
  friend struct TextLayers;
  struct State;
  explicit Session(std::unique_ptr<State> state);
  /// Takes a step that is checked.
  static void take_step(std::span<Session* const> sessions, const AttentionStep& step);
  /// Takes a step that is checked, of sessions of which some read a turn.
  static void take_turns(std::span<Session* const> sessions, const AttentionStep& step);
  // advance() and state() for a network that computes on the session's device.
  void advance(std::int64_t layer, std::int64_t tokens, std::shared_ptr<StateMemory> state);
  std::shared_ptr<const StateMemory> state_memory(std::int64_t layer) const;
  std::shared_ptr<StateMemory> spare_state(std::int64_t layer);
  /// Returns the tokens of the context and of the session, as far as they are known.
  PastTokens& past_tokens();
  /// Returns the text as a draft model or a draft layer has read it. Null: neither has.
  std::unique_ptr<DraftReading>& draft_reading();
  /// Sets SessionStats::draft_bytes.
  void count_draft_bytes(std::int64_t bytes);
  /// Returns the most tokens of the next step for which each token gets, bit for bit, what steps of
  /// one token give it: at least 1.
  std::int64_t most_alike() const;
  std::unique_ptr<State> state_;
};

}  // namespace topkv
