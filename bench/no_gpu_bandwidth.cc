#include "bench/gpu_bandwidth.h"
#include "topkv/error.h"

namespace bench {

double gpu_read_bandwidth() { throw topkv::Unsupported("this build has no CUDA"); }

}  // namespace bench
