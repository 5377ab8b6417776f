// Finds the nearest of a few keys through the installed library, and says whether it did.

#include <topkv/attention.h>
#include <topkv/context.h>
#include <topkv/error.h>
#include <topkv/key_index.h>
#include <topkv/model.h>
#include <topkv/progress.h>
#include <topkv/session.h>
#include <topkv/types.h>
#include <topkv/view.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

int main() {
  constexpr std::int64_t count = 4;
  constexpr std::int64_t dim = 16;
  std::vector<float> keys(count * dim, 0.0F);
  for (std::int64_t i = 0; i < count; ++i) keys[i * dim + i] = 1.0F;  // unit vectors

  std::unique_ptr<topkv::KeyIndex> index = topkv::make_index("exact");
  index->add({reinterpret_cast<const std::byte*>(keys.data()), topkv::DType::f32, count, dim,
              dim * static_cast<std::int64_t>(sizeof(float))});
  index->build();

  std::vector<float> query(dim, 0.0F);
  query[2] = 3.0F;  // q·k is 3 for key 2 and 0 for the others
  const topkv::PositionRange all{0, count};
  topkv::SearchResult found;
  index->search({query.data(), 1, dim, {&all, 1}}, 2, found);

  const auto positions = found.positions(0);
  const auto scores = found.scores(0);
  if (positions.size() != 2 || positions[0] != 2 || scores[0] != 3.0F) {
    std::fprintf(stderr, "consumer: expected position 2 with score 3 first of 2 results\n");
    return 1;
  }
  std::printf("consumer: found position 2 with score 3\n");
}
