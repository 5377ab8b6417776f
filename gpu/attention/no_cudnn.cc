// Instead of cudnn_attention.cc where cuDNN's headers were not to be had.
#include "gpu/attention/cudnn_attention.h"
#include "topkv/error.h"

namespace topkv::gpu {
namespace {

constexpr const char* reason =
    "this topkv was built without cuDNN; give it the headers of cuDNN 9 and of cudnn-frontend and "
    "build it with -D TOPKV_CUDNN=ON";

}  // namespace

struct CudnnAttention::Impl {};

bool CudnnAttention::available(std::string* why) {
  if (why != nullptr) *why = reason;
  return false;
}

CudnnAttention::CudnnAttention() { throw Unsupported(reason); }
CudnnAttention::~CudnnAttention() = default;

bool CudnnAttention::supports(const CudnnShape&, std::string* why) { return available(why); }
std::int64_t CudnnAttention::workspace_bytes(const CudnnShape&) { throw Unsupported(reason); }
void CudnnAttention::attend(const CudnnShape&, const __nv_bfloat16*, const __nv_bfloat16*,
                            const __nv_bfloat16*, const CudnnPartial&, void*, cudaStream_t,
                            const CudnnLengths&) {
  throw Unsupported(reason);
}

}  // namespace topkv::gpu
