#include "gpu/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include "gpu/attention.h"
#include "gpu/cuda_codes.h"
#include "gpu/cuda_device.h"
#include "gpu/elementwise.h"
#include "gpu/faults.h"
#include "gpu/row_stream.h"
#include "gpu/session_layout.h"
#include "gpu/step_io.h"
#include "src/core/faults.h"
#include "src/core/pause.h"
#include "src/core/stopwatch.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr int not_listed = -1;
constexpr std::uint64_t polls_of_a_check = 1024;
// A look takes the line from the device, which writes in order: looking all the time holds it up.
constexpr double between_looks = 3e-6;  // seconds

class CudaDecode final : public DecodeBackend {
 public:
  CudaDecode(CudaDevice& device, const SessionShape& shape)
      : compute_(device.compute_stream()),
        shape_(shape),
        attention_(shape_.attention),
        layout_(shape),
        memory_(device.allocate(layout_.device_bytes, "session")),
        host_(layout_.host_bytes),
        estimated_(static_cast<std::size_t>(shape.attention.layers)) {
    if (!attention_supports(attention_.head_dim)) {
      throw Unsupported(fmt::format("head_dim {} on a CUDA device; known are 64, 80, 96, 128, 256",
                                    attention_.head_dim));
    }
    TOPKV_CUDA(cudaMemsetAsync(memory_.data() + layout_.bad, 0xff, 8, compute_));
    TOPKV_CUDA(cudaMemsetAsync(figures_of(0), 0,
                               static_cast<std::size_t>(shape_.attention.layers) * figure_bytes,
                               compute_));
    std::fill(host<int>(layout_.host_lists), host<int>(layout_.host_begun), not_listed);
    for (const std::int64_t turn : {layout_.host_begun, layout_.host_taken, layout_.host_ready})
      *host<int>(turn) = 0;
    if (layout_.has_tiles()) {
      tiles_ =
          std::make_unique<RowStream>(attention_.kv_heads, attention_.head_dim,
                                      SessionLayout::dense_tile, memory_.data() + layout_.tiles);
    }
  }

  ~CudaDecode() override {
    cudaStreamSynchronize(beside_);
    cudaStreamSynchronize(compute_);
  }

  void load(std::int64_t layer, std::span<const RowSpan> rows, std::int64_t end) override {
    const LayerWindow& window = of(layer);
    beside_.synchronize();  // of a step that failed
    if (unread_ > 0) {
      compute_.synchronize();
      const std::int64_t of_token = layout_.lists * attention_.kv_heads;
      for (std::int64_t i = 0; i < layout_.list_tokens * of_token; ++i) empty(list_of({0, i, 0}));
      unread_ = 0;
    }
    const std::int64_t first = rows[0].first;
    const std::int64_t last = rows[0].end();
    // Sinks, then as many of the last rows as any window of later tokens reaches back to.
    put(layer, rows, {first, std::min(last, window.sinks)}, false);
    put(layer, rows, {std::max(first, end - window.window), last}, true);
    compute_.synchronize();
  }

  void begin(const AttentionStep& given, std::int64_t first) override {
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      handed_over_.record(user);
      handed_over_.block(compute_);
    }
    given_ = given;
    turn_ = turn_ == std::numeric_limits<int>::max() ? 1 : turn_ + 1;
    added_ = false;
    copied_by_scan_ = false;
    tail_ = {};
    scanned_ = false;
    exact_begun_ = false;
    queries_.data = at<__nv_bfloat16>(layout_.queries);
    queries_.tokens = given.tokens;
    queries_.q_heads = attention_.q_heads;
    queries_.kv_heads = attention_.kv_heads;
    queries_.head_dim = attention_.head_dim;
    queries_.first = first;
    queries_.scale = attention_.softmax_scale();
    queries_.softcap = attention_.softcap;
  }

  Step given() override {
    if (!copied_by_scan_) begin_exact(compute_);
    reach_fault("session.host_copies");
    if (copied_by_scan_) {
      wait_for_turn(layout_.host_taken, turn_, Asks::device);
    } else {
      on_host_.synchronize();
    }
    const std::int64_t d = attention_.head_dim;
    const std::int64_t rows = given_.kv_count();
    Step step;
    step.q = host<float>(layout_.host_q);
    step.k = TensorView::tokens_first(host<float>(layout_.host_k), DType::f32, rows,
                                      attention_.kv_heads, d);
    step.v = TensorView::tokens_first(host<float>(layout_.host_v), DType::f32, rows,
                                      attention_.kv_heads, d);
    return step;
  }

  void scan(std::int64_t layer, std::span<const ScanOf> parts) override {
    reach_fault("session.scan");
    const CudaCodes& of = codes();
    for (const ScanOf& part : parts) session(part).begin_lists(layer, part.scan);
    CodeScan scan = of.scan(layer);
    if (parts.size() == 1 && given_.tokens == 1) {
      // The scan takes the whole device: the host gets its copies before the pass, and what is
      // resident is attended beside it, where it leaves room (attend_resident).
      begun_.record(compute_);
      copied_by_scan_ = true;
      inject_copy_delay(compute_);
      add_token(layer, parts[0].scan, 0, scan);
      find(scan, input());
      listed_.record(compute_);
      return;
    }
    for (const ScanOf& part : parts) session(part).begin_exact(compute_);
    std::size_t ended = 0;  // parts, all of whose tokens are in scans
    std::size_t before = 0;
    const auto end_scan = [&] {
      find(scan, {});
      for (; before < ended; ++before) session(parts[before]).listed_.record(compute_);
      scan = of.scan(layer);
    };
    for (const ScanOf& part : parts) {
      for (std::int64_t i = 0; i < std::ssize(part.scan.allowed); ++i) {
        if (!session(part).add_token(layer, part.scan, i, scan)) {
          end_scan();
          session(part).add_token(layer, part.scan, i, scan);
        }
      }
      ++ended;
    }
    end_scan();
  }

  std::int64_t scan_tokens() const override { return layout_.list_tokens; }
  std::int64_t scan_lists() const override { return layout_.lists; }

  void read_list(const List& list, Asks asks, const std::function<void(std::int32_t)>& met,
                 const std::function<bool()>& meanwhile) override {
    int* const number = list_of(list);
    int* const begin = number + 1;
    int* next = begin;
    const auto meet = [&](const int* end) {
      for (; next < end && load(*next) != not_listed; ++next) met(*next);
    };
    const auto listed = [](int x) { return x != not_listed; };
    const std::int64_t count = wait_for(*number, listed, asks, [&] {
      const Stopwatch looked;
      meet(begin + layout_.list_rows);
      for (bool more = true; looked.seconds() < between_looks;) {
        if (more) more = meanwhile();
        if (!more) pause();
      }
    });
    while (next < begin + count) {
      wait_for(*next, listed, asks, pause);
      meet(begin + count);
    }
    empty(number);  // by who has it near
    --unread_;
  }

  /// What is resident, if that has not begun; in dense layers, the rows before it, streamed.
  void attend(std::int64_t layer, std::span<const RowSpan> rows) override {
    attend_resident();
    if (!of(layer).dense) return;
    const std::int64_t count =
        std::min(rows[0].end(), window_begin(layer, queries_.first)) - rows[0].first;
    if (count <= 0) return;
    views_.clear();
    for (const RowSpan& span : rows) views_.push_back(span.rows);
    tiles_->stream(views_, {0, count}, compute_, [&](const DeviceRows& tile) {
      gpu::attend(queries_, tile, {}, exact(), Into::merge, compute_);
    });
  }

  PartialView exact_part() override {
    reach_fault("session.exact_part");
    const std::int64_t heads = queries_.tokens * attention_.q_heads;
    const DevicePartial from = exact();
    const DevicePartial to = in_host_memory(layout_.host_exact);
    const auto copy = [&](float* into, const float* values, std::int64_t count) {
      TOPKV_CUDA(cudaMemcpyAsync(into, values, static_cast<std::size_t>(count) * sizeof(float),
                                 cudaMemcpyDeviceToHost, compute_));
    };
    copy(to.out, from.out, heads * attention_.head_dim);
    copy(to.lse, from.lse, heads);
    staged_.record(compute_);
    staged_.synchronize();
    return {to.out, to.lse, heads, attention_.head_dim};
  }

  bool goes_ahead() const override { return true; }
  int turn() const override { return turn_; }

  void await_scan(int turn) override { wait_for_turn(layout_.host_begun, turn, Asks::nobody); }

  const float* await_queries(int turn) override {
    wait_for_turn(layout_.host_taken, turn, Asks::nobody);
    return host<float>(layout_.host_q);
  }

  void ready(int turn) override {
    std::atomic_ref(*host<int>(layout_.host_ready)).store(turn, std::memory_order_release);
  }

  void watch() override {
    try {
      if (listed_.done()) over_ = true;
    } catch (...) {
      over_ = true;
      throw;
    }
  }

  PartialView room() override {
    const DevicePartial staged = found();
    return {staged.out, staged.lse, queries_.tokens * attention_.q_heads, attention_.head_dim};
  }

  void add(PartialView partial) override {
    const std::int64_t values = partial.heads * partial.head_dim;
    if (added_) {  // the one before; that of the step before was given when `given` waited
      StepParts some;
      some.exact = exact();
      some.found = found();
      give(some, exact().out, exact().lse);
      staged_.record(compute_);
      staged_.synchronize();
    }
    const DevicePartial staged = found();
    if (partial.out != staged.out) {
      std::copy_n(partial.out, values, staged.out);
      std::copy_n(partial.lse, partial.heads, staged.lse);
    }
    added_ = true;
  }

  void add_tail(PartialView estimate, const TailNoise* noise) override {
    const std::int64_t values = estimate.heads * estimate.head_dim;
    tail_ = {in_host_memory(layout_.host_estimate), host<TailNoise>(layout_.host_noise),
             figures_of(given_.layer)};
    std::copy_n(estimate.out, values, tail_.estimate.out);
    std::copy_n(estimate.lse, estimate.heads, tail_.estimate.lse);
    std::copy_n(noise, estimate.heads, host<TailNoise>(layout_.host_noise));
  }

  TailFigures tail_figures(std::int64_t layer) const override {
    double sums[SessionLayout::figures_of_layer];
    TOPKV_CUDA(
        cudaMemcpyAsync(sums, figures_of(layer), figure_bytes, cudaMemcpyDeviceToHost, compute_));
    compute_.synchronize();
    return {estimated_[static_cast<std::size_t>(layer)], sums[0], sums[1]};
  }

  void finish(const AttentionStep& given) override { finish(given, parts()); }

  void finish_ahead(const AttentionStep& given) override {
    StepParts all = parts();
    all.found = found();
    all.ready = host<int>(layout_.host_ready);
    all.turn = turn_;
    finish(given, all);
  }

 private:
  StepParts parts() const {
    StepParts all;
    all.exact = exact();
    if (scanned_) all.rare = rare();
    if (added_) all.found = found();
    all.tail = tail_;
    return all;
  }

  void finish(const AttentionStep& given, const StepParts& all) {
    give(all, given.out, given.lse);
    if (tail_.sums != nullptr)
      estimated_[static_cast<std::size_t>(given.layer)] += given.tokens * attention_.q_heads;
    if (const auto user = static_cast<cudaStream_t>(given.stream); user != nullptr) {
      handed_over_.record(compute_);
      handed_over_.block(user);
    }
  }

  static CudaDecode& session(const ScanOf& part) { return static_cast<CudaDecode&>(*part.backend); }
  const CudaCodes& codes() const { return static_cast<const CudaCodes&>(*shape_.codes); }

  /// Where a scan of this session's tokens lists what it finds, and the tail.
  void begin_lists(std::int64_t layer, const Scan& wanted) {
    over_ = false;
    scanned_ = true;
    unread_ += std::ssize(wanted.allowed) * layout_.lists * attention_.kv_heads;
    if (wanted.tail) tail_ = {estimate(), at<TailNoise>(layout_.noise), figures_of(layer)};
  }

  /// Has a scan find rows for number i of the tokens. False, and nothing is changed: it has as many
  /// as it can, or others want something else.
  bool add_token(std::int64_t layer, const Scan& wanted, std::int64_t i, CodeScan& scan) const {
    const auto rows = static_cast<int>(std::min(wanted.rows, codes().tokens()));
    const auto lists = static_cast<int>(layout_.lists);
    const auto capacity = static_cast<int>(layout_.list_rows);
    if (scan.tokens == codes().scan_tokens()) return false;
    if (scan.tokens > 0 && (scan.wanted != rows || scan.lists != lists ||
                            scan.capacity != capacity || scan.tail != wanted.tail)) {
      return false;
    }
    scan.wanted = rows;
    scan.lists = lists;
    scan.capacity = capacity;
    scan.tail = wanted.tail;
    for (std::int64_t head = 0; head < attention_.kv_heads; ++head) {
      scan.range[scan.meetings() + head] =
          codes().range(layer, head, wanted.allowed[static_cast<std::size_t>(i)]);
    }
    const std::int64_t d = attention_.head_dim;
    const std::int64_t before = (wanted.token + i) * attention_.q_heads;
    scan.token[scan.tokens++] = {
        .query = given_.q + before * d,
        .rare = {rare().out + before * d, rare().lse + before},
        .estimate = {estimate().out + before * d, estimate().lse + before},
        .noise = at<TailNoise>(layout_.noise) + before,
        .found = list_of({i, 0, 0}),
    };
    return true;
  }

  /// Begins a scan. What `copied` names goes to the host beside it.
  void find(CodeScan& scan, const StepInput& copied) const {
    scan.splits = codes().splits(scan.tokens);
    gpu::prepare_queries(scan, copied, compute_);
    gpu::list_rows(scan, compute_);
  }

  /// What is resident, if that has not begun: beside the scan for one token, where it leaves room.
  void attend_resident() {
    if (exact_begun_) return;
    begun_.block(beside_);
    begin_exact(beside_);
    exact_done_.record(beside_);
    exact_done_.block(compute_);
  }

  const LayerWindow& of(std::int64_t layer) const {
    return layout_.layers[static_cast<std::size_t>(layer)];
  }
  template <class T>
  T* at(std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  template <class T>
  T* host(std::int64_t offset) const {
    return reinterpret_cast<T*>(host_.data() + offset);
  }
  int* list_of(const List& list) const {
    const std::int64_t before =
        (list.token * layout_.lists + list.number) * attention_.kv_heads + list.kv_head;
    return host<int>(layout_.host_lists) + before * (1 + layout_.list_rows);
  }
  DevicePartial exact() const { return {at<float>(layout_.exact), at<float>(layout_.lse)}; }

  /// A list as scans expect it: nothing is listed that the last one left there.
  static void empty(int* list) {
    if (*list == not_listed) return;
    std::fill_n(list + 1, *list, not_listed);
    *list = not_listed;
  }

  static int load(int& place) { return std::atomic_ref(place).load(std::memory_order_acquire); }

  /// What the device writes at one place in page-locked memory, once it is(it). Calls meanwhile()
  /// between looks.
  template <class Is, class Use>
  int wait_for(int& place, const Is& is, Asks asks, const Use& meanwhile) {
    for (std::uint64_t polls = 1;; ++polls) {
      if (const int x = load(place); is(x)) return x;
      meanwhile();
      if (polls > polls_of_a_check) std::this_thread::yield();  // others' work is before this
      if (polls % polls_of_a_check != 0) continue;
      if (asks == Asks::device) watch();
      if (over_ && !is(load(place))) throw Error("a scan over codes ended without its results");
    }
  }
  void wait_for_turn(std::int64_t place, int turn, Asks asks) {
    wait_for(
        *host<int>(place), [&](int x) { return x == turn; }, asks, pause);
  }

  /// In page-locked memory: what was added last.
  DevicePartial found() const { return in_host_memory(layout_.host_found); }
  DevicePartial in_host_memory(std::int64_t offset) const {
    auto* out = host<float>(offset);
    return {out, out + shape_.max_tokens * attention_.q_heads * attention_.head_dim};
  }
  /// Of scans: the tail, and rare rows.
  DevicePartial estimate() const { return in_device_memory(layout_.estimate); }
  DevicePartial rare() const { return in_device_memory(layout_.rare); }
  DevicePartial in_device_memory(std::int64_t offset) const {
    auto* out = at<float>(offset);
    return {out, out + shape_.max_tokens * attention_.q_heads * attention_.head_dim};
  }
  static constexpr std::size_t figure_bytes = SessionLayout::figures_of_layer * sizeof(double);
  double* figures_of(std::int64_t layer) const {
    return at<double>(layout_.figures) + layer * SessionLayout::figures_of_layer;
  }

  /// Merges the parts of the step.
  void give(const StepParts& parts, float* out, float* lse) {
    inject_copy_delay(compute_);
    give_step(parts, queries_.tokens * attention_.q_heads, attention_.head_dim, out, lse, compute_);
    added_ = false;
  }

  /// What the host wants of a step, and queries as kernels want them.
  StepInput input() const {
    const std::int64_t d = attention_.head_dim;
    StepInput input;
    input.q = given_.q;
    input.k = given_.k;
    input.v = given_.v;
    input.q_count = given_.tokens * attention_.q_heads * d;
    input.kv_count = given_.kv_count() * attention_.kv_heads * d;
    input.host_q = host<float>(layout_.host_q);
    input.host_k = host<float>(layout_.host_k);
    input.host_v = host<float>(layout_.host_v);
    input.queries = at<__nv_bfloat16>(layout_.queries);
    input.begun = host<int>(layout_.host_begun);
    input.taken = host<int>(layout_.host_taken);
    input.turn = turn_;
    return input;
  }

  /// Once a step: what it is given, rows that stay resident, and the attention over these.
  void begin_exact(cudaStream_t stream) {
    if (exact_begun_) return;
    StepInput taken = input();
    if (copied_by_scan_) {
      taken.host_q = nullptr;
    } else {
      inject_copy_delay(stream);
    }
    take_step(taken, stream);
    if (!copied_by_scan_) on_host_.record(stream);
    const std::int64_t rows = given_.kv_count();
    reach_fault("session.keep_rows");
    if (rows > 0) keep_rows(given_.layer, given_.k, given_.v, rows, queries_.first, stream);
    attend_window(given_.layer, rows, queries_.first, stream);
    exact_begun_ = true;
  }

  std::int64_t window_begin(std::int64_t layer, std::int64_t first) const {
    return std::max<std::int64_t>(0, first - of(layer).window + 1);
  }

  /// Copies rows of positions `range` to the ring (or the sinks).
  void put(std::int64_t layer, std::span<const RowSpan> rows, PositionRange range, bool ring) {
    const LayerWindow& window = of(layer);
    const std::int64_t slots = ring ? window.slots : window.sinks;
    const std::int64_t row = attention_.head_dim * bytes_of(DType::bf16);
    std::byte* base = memory_.data() + (ring ? window.ring_at : window.sinks_at);
    for (std::int64_t p = range.begin; p < range.end;) {
      const std::int64_t slot = p % slots;
      const std::int64_t count = std::min(range.end - p, slots - slot);
      for (std::int64_t head = 0; head < attention_.kv_heads; ++head) {
        const auto& [from, first] = rows[static_cast<std::size_t>(head)];
        std::byte* keys = base + (head * 2 * slots + slot) * row;
        const auto bytes = static_cast<std::size_t>(count * row);
        TOPKV_CUDA(
            cudaMemcpyAsync(keys, from.key(p - first), bytes, cudaMemcpyHostToDevice, compute_));
        TOPKV_CUDA(cudaMemcpyAsync(keys + slots * row, from.value(p - first), bytes,
                                   cudaMemcpyHostToDevice, compute_));
      }
      p += count;
    }
  }

  DeviceRows ring(const LayerWindow& window, std::int64_t first, std::int64_t count) const {
    DeviceRows rows;
    rows.keys = at<__nv_bfloat16>(window.ring_at);
    rows.values = rows.keys + window.slots * attention_.head_dim;
    rows.head_stride = 2 * window.slots * attention_.head_dim;
    rows.first = first;
    rows.count = count;
    rows.ring = window.slots;
    return rows;
  }

  /// The new rows join the ring, and the sinks while these are not complete. What cannot be stored
  /// is found on the host, which keeps the rows for good.
  void keep_rows(std::int64_t layer, const float* k, const float* v, std::int64_t tokens,
                 std::int64_t first, cudaStream_t stream) {
    const LayerWindow& window = of(layer);
    const std::int64_t d = attention_.head_dim;
    auto* bad = at<unsigned long long>(layout_.bad);
    PackTarget target;
    target.keys = at<__nv_bfloat16>(window.ring_at);
    target.values = target.keys + window.slots * d;
    target.head_stride = 2 * window.slots * d;
    target.first = first;
    target.ring = window.slots;
    pack_rows(k, v, tokens, attention_.kv_heads, d, target, bad, stream);
    const std::int64_t sinks = std::min(tokens, window.sinks - first);
    if (sinks <= 0) return;
    PackTarget first_rows;
    first_rows.keys = at<__nv_bfloat16>(window.sinks_at) + first * d;
    first_rows.values = first_rows.keys + window.sinks * d;
    first_rows.head_stride = 2 * window.sinks * d;
    pack_rows(k, v, sinks, attention_.kv_heads, d, first_rows, bad, stream);
  }

  /// Sinks before the ring's rows, and the ring with the `added` new ones: two disjoint sets.
  void attend_window(std::int64_t layer, std::int64_t added, std::int64_t first,
                     cudaStream_t stream) {
    const LayerWindow& window = of(layer);
    const std::int64_t begin = window_begin(layer, first);
    gpu::attend(queries_, ring(window, begin, first + added - begin),
                {true, window.dense ? 0 : window.window, window.sinks}, exact(), Into::overwrite,
                stream);
    const std::int64_t sinks = std::min(window.sinks, begin);
    if (sinks == 0) return;
    DeviceRows rows;
    rows.keys = at<__nv_bfloat16>(window.sinks_at);
    rows.values = rows.keys + window.sinks * attention_.head_dim;
    rows.head_stride = 2 * window.sinks * attention_.head_dim;
    rows.count = sinks;
    gpu::attend(queries_, rows, {}, exact(), Into::merge, stream);
  }

  const Stream& compute_;
  SessionShape shape_;
  const AttentionShape& attention_;
  SessionLayout layout_;
  Buffer memory_;
  PinnedBuffer host_;
  std::unique_ptr<RowStream> tiles_;      // null: no dense layers
  std::vector<RowsView> views_;           // per KV head
  AttentionStep given_;                   // this step
  int turn_ = 0;                          // of this step
  std::atomic<std::int64_t> unread_ = 0;  // lists of scans
  std::atomic<bool> over_ = false;        // the last scan is, or the device: nothing more is listed
  bool copied_by_scan_ = false;           // the host's copies are
  bool exact_begun_ = false;
  bool scanned_ = false;                 // what scans give is a part of this step
  bool added_ = false;                   // a partial waits in page-locked memory
  GivenTail tail_;                       // of this step
  std::vector<std::int64_t> estimated_;  // heads of each layer, whose figures are summed up
  Stream beside_;                        // for the exact part of a step that scans
  Event begun_;
  Event exact_done_;
  Event on_host_;
  Event listed_;
  Event staged_;              // the last partial has left its place in host memory
  Event handed_over_;         // tensors by the caller's stream, results to it
  AttentionQueries queries_;  // of this step
};

}  // namespace

std::unique_ptr<DecodeBackend> make_decode_backend(CudaDevice& device, const SessionShape& shape) {
  return std::make_unique<CudaDecode>(device, shape);
}

std::int64_t decode_backend_bytes(const SessionShape& shape) {
  return SessionLayout(shape).device_bytes;
}

}  // namespace topkv::gpu
