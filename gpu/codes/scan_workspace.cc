#include "gpu/codes/scan_workspace.h"

#include <algorithm>

#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t list_memory = std::int64_t{1} << 20;  // for the lists of one scan
// Of a token: what 15 threads take once or, where there are many heads or rows, twice.
constexpr std::int64_t most_lists = 14;
constexpr std::int64_t many_rows = 256;  // of a KV head

std::int64_t list_bytes(std::int64_t rows) { return (1 + rows) * std::int64_t{sizeof(int)}; }

}  // namespace

ScanLayout::ScanLayout(const SessionShape& shape, std::int64_t most_rows) {
  const AttentionShape& a = shape.attention;
  const std::int64_t heads = shape.max_tokens * a.q_heads;
  const std::int64_t f32 = bytes_of(DType::f32);
  Pieces device;  // partials, each with its lse behind
  rare = device.place(heads * (a.head_dim + 1) * f32);
  estimate = device.place(heads * (a.head_dim + 1) * f32);
  noise = device.place(heads * std::int64_t{sizeof(TailNoise)});
  kv_heads = a.kv_heads;
  group = a.group();
  max_tokens = shape.max_tokens;
  this->most_rows = most_rows;
  if (shape.row_copy) {
    listed = device.place(a.q_heads * (a.head_dim + 1) * f32);
    device_lists = device.place(kv_heads * list_bytes(most_listed));
  }
  device_bytes = device.used();
  const std::int64_t usual = std::min(shape.usual_rows, most_rows);
  const bool twice = kv_heads * 2 > most_lists || group * usual > many_rows;
  lists = std::clamp<std::int64_t>((twice ? 2 : 1) * most_lists / kv_heads, 1, scan_lists);
  const std::int64_t tokens =
      std::clamp<std::int64_t>(list_memory / token_bytes(usual), 1, max_tokens);
  host_bytes = std::max(tokens * token_bytes(usual), token_bytes(shape.most_rows));
}

std::int64_t ScanLayout::list_rows(std::int64_t rows, std::int64_t lists_of_head) const {
  // Heads want different rows, and a sample tells the threshold roughly. What does not fit stays in
  // the tail.
  return std::min(most_rows, 4 * group * std::min(rows, most_rows) / lists_of_head + 256);
}

std::int64_t ScanLayout::scan_tokens(std::int64_t rows) const {
  return std::clamp<std::int64_t>(host_bytes / token_bytes(rows), 1, max_tokens);
}

std::int64_t ScanLayout::token_bytes(std::int64_t rows) const {
  return lists * kv_heads * list_bytes(list_rows(rows));
}

ScanWorkspace::ScanWorkspace(const SessionShape& shape, const ScanLayout& layout, std::byte* device,
                             std::byte* host)
    : attention_(shape.attention),
      heads_(layout.max_tokens * attention_.q_heads),
      layout_(layout),
      device_(device),
      host_(host) {
  empty_all();
}

bool ScanWorkspace::add_token(const CudaCodes& codes, const CodeScanner::Scan& wanted,
                              const Allowed& allowed, std::int64_t i, const AttentionStep& step,
                              CodeScan& scan) const {
  const auto rows = static_cast<int>(std::min(wanted.rows, codes.tokens()));
  const auto lists = static_cast<int>(layout_.lists);
  const auto capacity = static_cast<int>(layout_.list_rows(wanted.rows));
  if (scan.tokens == codes.scan_tokens()) return false;
  if (scan.tokens > 0 && (scan.wanted != rows || scan.lists != lists || scan.capacity != capacity ||
                          scan.tail != wanted.tail)) {
    return false;
  }
  scan.wanted = rows;
  scan.lists = lists;
  scan.capacity = capacity;
  scan.tail = wanted.tail;
  const ChunkPasses& passes = wanted.passes;
  scan.forms = static_cast<int>(passes.size());
  for (std::int64_t head = 0; head < attention_.kv_heads; ++head) {
    const PositionRange& rows =
        allowed.rows[static_cast<std::size_t>(i * attention_.kv_heads + head)];
    scan.range[scan.head_steps() + head] = codes.range(step.layer, head, rows);
    for (std::int64_t form = 0; form + 1 < passes.size(); ++form) {
      const std::int64_t begin =
          std::clamp(passes[form].sees.begin - allowed.first, rows.begin, rows.end);
      const ScanRange range = codes.range(step.layer, head, {begin, rows.end});
      scan.border[form][head] = {range.begin, range.rare_begin};
    }
  }
  const std::int64_t d = attention_.head_dim;
  const std::int64_t before = (wanted.token + i) * attention_.q_heads;
  ScanToken& token = scan.token[scan.tokens++];
  token = {.parts = given(true).part(before, attention_.q_heads),
           .found = list({.token = i, .rows = wanted.rows})};
  for (std::int64_t form = 0; form < passes.size(); ++form)
    token.query[form] = passes[form].queries(step) + before * d;
  return true;
}

void ScanWorkspace::attend_listed(ListedRows rows, const CodeScanner::Scan& wanted,
                                  CodeScan& scan) const {
  rows.to = listed();
  for (std::int64_t form = 0; form + 1 < wanted.passes.size(); ++form)
    rows.form_begin[form] = static_cast<int>(wanted.passes[form].sees.begin);
  scan.listed_rows = rows;
  scan.lists = 1;
  scan.capacity = static_cast<int>(layout_.listed_rows(wanted.rows));
  scan.token[0].found = reinterpret_cast<int*>(device_ + layout_.device_lists);
}

PartialView ScanWorkspace::listed() const {
  auto* out = reinterpret_cast<float*>(device_ + layout_.listed);
  return {out, out + attention_.q_heads * attention_.head_dim, attention_.q_heads,
          attention_.head_dim};
}

TailParts ScanWorkspace::given(bool tail) const {
  const auto partial = [&](std::int64_t offset) {
    auto* out = reinterpret_cast<float*>(device_ + offset);
    return PartialView{out, out + heads_ * attention_.head_dim, heads_, attention_.head_dim};
  };
  return {tail ? partial(layout_.estimate) : PartialView{}, partial(layout_.rare),
          reinterpret_cast<TailNoise*>(device_ + layout_.noise)};
}

int* ScanWorkspace::list(const CodeScanner::List& list) const {
  const std::int64_t before =
      (list.token * layout_.lists + list.number) * attention_.kv_heads + list.kv_head;
  return reinterpret_cast<int*>(host_ + before * list_bytes(layout_.list_rows(list.rows)));
}

void ScanWorkspace::empty(int* list) {
  if (*list == not_listed) return;
  std::fill_n(list + 1, *list, not_listed);
  *list = not_listed;
}

void ScanWorkspace::empty_all() const {
  std::fill_n(reinterpret_cast<int*>(host_), layout_.host_bytes / std::int64_t{sizeof(int)},
              not_listed);
}

}  // namespace topkv::gpu
