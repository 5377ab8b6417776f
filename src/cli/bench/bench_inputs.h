// What `topkv bench` gives to sessions and prefills: q, k and v, made on the host and copied to the
// device that attends them.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/compute_device.h"

namespace topkv::cli {

class BenchInputs {
 public:
  /// Room for so many values; out has as many as q.
  BenchInputs(ComputeDevice& device, std::int64_t q_size, std::int64_t kv_size)
      : q(static_cast<std::size_t>(q_size)),
        k(static_cast<std::size_t>(kv_size)),
        v(k.size()),
        device_(device),
        q_(room(q_size)),
        k_(room(kv_size)),
        v_(room(kv_size)),
        out_(room(q_size)) {}

  std::vector<float> q, k, v;  // on the host, to be filled

  /// Copies them to the device, and waits until they are there.
  void send() {
    copy(q, q_);
    copy(k, k_);
    copy(v, v_);
    device_.synchronize();
  }
  const float* device_q() const { return q_.floats(); }
  const float* device_k() const { return k_.floats(); }
  const float* device_v() const { return v_.floats(); }
  float* device_out() const { return out_.floats(); }

 private:
  Buffer room(std::int64_t count) {
    return device_.allocate(count * bytes_of(DType::f32), "bench");
  }
  void copy(const std::vector<float>& from, const Buffer& to) {
    device_.copy_in(from.data(), static_cast<std::int64_t>(from.size() * sizeof(float)), to.data());
  }

  ComputeDevice& device_;
  Buffer q_, k_, v_, out_;
};

}  // namespace topkv::cli
