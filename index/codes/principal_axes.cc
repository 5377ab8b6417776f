#include "index/codes/principal_axes.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/threads/threads.h"
#include "topkv/error.h"

// LAPACK has no header of its own.
extern "C" void dsyev_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda,
                       double* w, double* work, const int* lwork, int* info);

namespace topkv {

std::vector<double> principal_axes(std::int64_t n, std::vector<double>& matrix) {
  const auto size = static_cast<int>(n);
  std::vector<double> values(static_cast<std::size_t>(n));
  std::vector<double> work(static_cast<std::size_t>(n) * 34);
  const auto room = static_cast<int>(work.size());
  int info = 0;
  // Many heads are learned at a time: OpenBLAS's own threads would have them wait for each other.
  const OneBlasThread one_thread;
  dsyev_("V", "U", &size, matrix.data(), &size, values.data(), work.data(), &room, &info);
  if (info != 0) throw Error(fmt::format("LAPACK's dsyev ended with {}", info));
  // Ascending, and in Fortran's order, in which a vector is a row of ours.
  std::reverse(values.begin(), values.end());
  for (std::int64_t i = 0; i < n / 2; ++i) {
    std::swap_ranges(matrix.begin() + i * n, matrix.begin() + (i + 1) * n,
                     matrix.begin() + (n - 1 - i) * n);
  }
  for (double& value : values) value = std::max(value, 0.0);
  return values;
}

}  // namespace topkv
