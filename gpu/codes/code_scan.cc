#include "gpu/codes/code_scan.h"

#include "gpu/codes/code_stages.h"

namespace topkv::gpu {

void list_rows(const CodeScan& scan, cudaStream_t stream) {
  pass_codes(scan, stream);
  if (scan.tail || scan.listed_rows.keys != nullptr) attend_rest(scan, stream);
  attend_rare(scan, stream);
}

}  // namespace topkv::gpu
