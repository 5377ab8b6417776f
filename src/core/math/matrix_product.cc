#include "src/core/math/matrix_product.h"

#include <dnnl.h>
#include <fmt/format.h>
#include <pthread.h>

#include <csignal>

#include "topkv/error.h"

namespace topkv {
namespace {

/// Holds back every signal that is not raised by the thread's own instructions.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT})
      sigdelset(&all, fault);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsHeldBack(const SignalsHeldBack&) = delete;  // belongs to one scope
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

void matrix_product(Transposed b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                    const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta,
                    float* c, std::int64_t ldc) {
  const char transposed = b_transposed == Transposed::yes ? 'T' : 'N';
  const SignalsHeldBack held_back;
  const dnnl_status_t status =
      dnnl_sgemm('N', transposed, m, n, k, 1.0F, a, lda, b, ldb, beta, c, ldc);
  if (status != dnnl_success) {
    throw Error(fmt::format("oneDNN refused a product of [{}, {}] and [{}, {}] (status {})", m, k,
                            k, n, static_cast<int>(status)));
  }
}

}  // namespace topkv
