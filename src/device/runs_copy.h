// Runs of values at regular distances, such as a part of each head.
#pragma once

#include <cstdint>

namespace topkv {

/// Where [rows, columns] runs of `width` values lie, in values. Run (r, c) is copied from
/// r * from_row + c * from_column to r * to_row + c * to_column.
struct RunsCopy {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t width = 0;
  std::int64_t from_row = 0;
  std::int64_t from_column = 0;
  std::int64_t to_row = 0;
  std::int64_t to_column = 0;
};

}  // namespace topkv
