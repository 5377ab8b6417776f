// The limit of a GPU's memory, measured in the run that is compared with it.
#pragma once

namespace bench {

/// Bytes per second that the current GPU reads of its memory, streaming: the best of several sizes
/// of launch, by CUDA events. In a build without CUDA it throws Unsupported.
double gpu_read_bandwidth();

}  // namespace bench
