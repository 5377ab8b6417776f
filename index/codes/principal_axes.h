// Principal axes of a covariance, by LAPACK.
#pragma once

#include <cstdint>
#include <vector>

namespace topkv {

/// matrix: [n, n], symmetric; becomes its eigenvectors, one per row, those of the largest
/// eigenvalue first. Gives the eigenvalues, none below 0. Throws Error when LAPACK finds none.
std::vector<double> principal_axes(std::int64_t n, std::vector<double>& matrix);

}  // namespace topkv
