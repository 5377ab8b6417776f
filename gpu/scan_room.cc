#include "gpu/scan_room.h"

#include <algorithm>

#include "src/device/pieces.h"

namespace topkv::gpu {
namespace {

constexpr std::int64_t list_memory = std::int64_t{1} << 20;  // for the lists of one scan
// Of a token: what 15 threads take once or, where there are many heads or rows, twice.
constexpr std::int64_t most_lists = 14;
constexpr std::int64_t many_rows = 512;  // of a KV head

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
  device_bytes = device.used();
  // Heads want different rows, and a sample tells the threshold roughly. What does not fit stays in
  // the tail.
  const std::int64_t rows = std::min(shape.most_rows, most_rows);
  const bool twice = a.kv_heads * 2 > most_lists || a.group() * rows > many_rows;
  const std::int64_t all_lists = twice ? 2 * most_lists : most_lists;
  lists = std::clamp<std::int64_t>(all_lists / a.kv_heads, 1, scan_lists);
  list_rows = std::min(most_rows, 4 * a.group() * rows / lists + 256);
  const std::int64_t of_token = lists * a.kv_heads * list_bytes(list_rows);
  list_tokens = std::clamp<std::int64_t>(list_memory / of_token, 1, shape.max_tokens);
  host_bytes = list_tokens * of_token;
}

ScanRoom::ScanRoom(const SessionShape& shape, const ScanLayout& layout, std::byte* device,
                   std::byte* host)
    : attention_(shape.attention),
      heads_(shape.max_tokens * attention_.q_heads),
      layout_(layout),
      device_(device),
      host_(host) {
  std::fill_n(reinterpret_cast<int*>(host), layout.host_bytes / std::int64_t{sizeof(int)},
              not_listed);
}

bool ScanRoom::add_token(const CudaCodes& codes, std::int64_t layer,
                         const DecodeBackend::Scan& wanted, std::span<const PositionRange> allowed,
                         std::int64_t i, const float* queries, CodeScan& scan) const {
  const auto rows = static_cast<int>(std::min(wanted.rows, codes.tokens()));
  const auto lists = static_cast<int>(layout_.lists);
  const auto capacity = static_cast<int>(layout_.list_rows);
  if (scan.tokens == codes.scan_tokens()) return false;
  if (scan.tokens > 0 && (scan.wanted != rows || scan.lists != lists || scan.capacity != capacity ||
                          scan.tail != wanted.tail)) {
    return false;
  }
  scan.wanted = rows;
  scan.lists = lists;
  scan.capacity = capacity;
  scan.tail = wanted.tail;
  for (std::int64_t head = 0; head < attention_.kv_heads; ++head) {
    scan.range[scan.meetings() + head] =
        codes.range(layer, head, allowed[static_cast<std::size_t>(i)]);
  }
  const std::int64_t d = attention_.head_dim;
  const std::int64_t before = (wanted.token + i) * attention_.q_heads;
  const auto part = [&](const DevicePartial& all) {
    return DevicePartial{all.out + before * d, all.lse + before};
  };
  scan.token[scan.tokens++] = {
      .query = queries + before * d,
      .rare = part(partial(layout_.rare)),
      .estimate = part(partial(layout_.estimate)),
      .noise = noise() + before,
      .found = list({i, 0, 0}),
  };
  return true;
}

GivenScan ScanRoom::given(bool tail) const {
  return {partial(layout_.rare), tail ? partial(layout_.estimate) : DevicePartial{}, noise()};
}

int* ScanRoom::list(const DecodeBackend::List& list) const {
  const std::int64_t before =
      (list.token * layout_.lists + list.number) * attention_.kv_heads + list.kv_head;
  return reinterpret_cast<int*>(host_ + before * list_bytes(layout_.list_rows));
}

void ScanRoom::empty(int* list) {
  if (*list == not_listed) return;
  std::fill_n(list + 1, *list, not_listed);
  *list = not_listed;
}

void ScanRoom::empty_all() const {
  const std::int64_t of_token = layout_.lists * attention_.kv_heads;
  for (std::int64_t i = 0; i < layout_.list_tokens * of_token; ++i) empty(list({0, i, 0}));
}

DevicePartial ScanRoom::partial(std::int64_t offset) const {
  auto* out = reinterpret_cast<float*>(device_ + offset);
  return {out, out + heads_ * attention_.head_dim};
}

}  // namespace topkv::gpu
