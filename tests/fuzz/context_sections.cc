// The sections of a context's file, in one that is whole otherwise, and sessions over what is
// loaded.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/fuzz/context_bytes.h"
#include "tests/fuzz/target.h"
#include "topkv/context_file.h"
#include "topkv/session.h"

namespace fuzz = topkv::fuzz;

namespace {

void attend(const std::shared_ptr<const topkv::Context>& context, const std::string& index,
            const std::string& tail) {
  const topkv::AttentionShape& shape = context->shape();
  topkv::Session session(
      context,
      {.index = index, .k = topkv::TopK::same(4), .tail = tail, .window = 4, .capacity = 2});
  const std::vector<float> q(static_cast<std::size_t>(shape.q_heads * shape.head_dim), 0.5F);
  const std::vector<float> kv(static_cast<std::size_t>(shape.kv_heads * shape.head_dim), 0.25F);
  std::vector<float> out(q.size());
  topkv::AttentionStep step;
  step.tokens = 1;
  step.q = q.data();
  step.q_next = q.data();
  step.q_far = q.data();
  step.out = out.data();
  const topkv::IndexerShape indexer = shape.indexer.value_or(topkv::IndexerShape());
  const std::vector<float> index_tensor(static_cast<std::size_t>(indexer.heads * indexer.dim),
                                        0.5F);
  for (step.layer = 0; step.layer < shape.layers; ++step.layer) {
    const auto state = static_cast<std::size_t>(shape.state_size_of(step.layer));
    step.k = step.v = shape.has_rows(step.layer) ? kv.data() : nullptr;
    step.index_q = step.index_k = shape.has_index_keys(step.layer) ? index_tensor.data() : nullptr;
    if (shape.is_attention(step.layer)) {
      session.attend(step);
    } else {
      session.advance(step.layer, 1, std::vector<float>(state, 0.5F));
    }
  }
}

}  // namespace

FUZZ_TARGET(context_sections)(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const std::string bytes = fuzz::file_of_sections(fuzz::text_of(data, size));
  const auto path = folder.write("c.tkv", bytes);
  const std::string beginning = path.string();
  fuzz::accepts(
      [&] {
        const std::vector<std::string> known = topkv::context_file_info(path).indices;
        const auto loaded = topkv::load_context(path, {.indices = known});
        const auto& shape = loaded.context->shape();
        if (shape.q_heads * shape.head_dim * shape.layers > 1 << 16) return;  // to be quick
        if (shape.indexer && shape.indexer->heads * shape.indexer->dim > 1 << 16) return;
        for (const std::int64_t size : shape.state_size)
          if (size > 1 << 16) return;
        for (const std::string& index : loaded.context->indices()) {
          const topkv::IndexSpec spec(index);
          fuzz::accepts([&] { attend(loaded.context, spec.text(), "none"); });
          if (spec.has_tail()) fuzz::accepts([&] { attend(loaded.context, "exact", spec.text()); });
        }
        fuzz::accepts([&] { loaded.context->with_index("h2o"); });
      },
      beginning);
  const bool verifies = fuzz::accepts([&] { topkv::verify_context(path); }, beginning);
  if (verifies) fuzz::accepts([&] { topkv::context_file_info(path); }, beginning);
  return 0;
}
