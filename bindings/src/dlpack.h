// The part of DLPack's binary interface that is needed to take arrays in: versions 0.x ("dltensor"
// capsules) and 1.x ("dltensor_versioned"). Declared here because the dlpack.h that Debian 12 has
// (0.6) knows no versioned tensors. Source: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace topkv::python::dlpack {

enum DeviceType : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };
enum TypeCode : std::uint8_t { integer = 0, unsigned_integer = 1, floating = 2, bfloat = 4 };

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements; null: row-major, contiguous (0.x only)
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor* self);
};

inline constexpr std::uint64_t read_only_flag = 1;

struct ManagedTensorVersioned {
  std::uint32_t major_version;
  std::uint32_t minor_version;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned* self);
  std::uint64_t flags;
  Tensor tensor;
};

}  // namespace topkv::python::dlpack
