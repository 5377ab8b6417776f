// A context in the making, as the model's own prefill sees it.
#pragma once

#include <memory>
#include <vector>

#include "src/context/index_growth.h"
#include "src/device/device_prefill.h"
#include "topkv/context.h"

namespace topkv {

class PrefillContext {
 public:
  /// What tokens of a layer may attend. Throws InvalidArgument on a window below 1 or negative
  /// sinks.
  static CausalWindow visible(const AttentionShape& shape, std::int64_t layer,
                              const PrefillAttention& attention);
  /// [layers]
  static PrefillVisibility visibility(const AttentionShape& shape,
                                      const PrefillAttention& attention);

  /// The store that a device writes rows to.
  static RowStore& store(ContextBuilder& builder);

  /// builder.freeze() with the indices that grew meanwhile.
  static std::shared_ptr<const Context> freeze(ContextBuilder& builder,
                                               std::vector<GrownIndex> indices);
};

}  // namespace topkv
