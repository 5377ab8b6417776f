#include <fmt/format.h>
#include <pybind11/stl.h>

#include "bindings/src/handles.h"

namespace topkv::python {

void bind_device(py::module_& module) {
  py::class_<DeviceMemory>(
      module, "DeviceMemory",
      "Bytes of a CUDA device; all 0 for the host. items: what `used` consists "
      "of, as (what, bytes).")
      .def_readonly("ceiling", &DeviceMemory::ceiling, "What topkv may take in all.")
      .def_readonly("libraries", &DeviceMemory::libraries,
                    "Of it, taken by the CUDA context and kept for its libraries.")
      .def_readonly("used", &DeviceMemory::used, "Allocated now, libraries included.")
      .def_readonly("peak", &DeviceMemory::peak, "The most allocated at a time.")
      .def_readonly("driver", &DeviceMemory::driver,
                    "What this process takes as the driver has it; 0: not known.")
      .def_property_readonly("items",
                             [](const DeviceMemory& memory) {
                               std::vector<std::pair<std::string, std::int64_t>> items;
                               for (const MemoryItem& item : memory.items)
                                 items.emplace_back(item.what, item.bytes);
                               return items;
                             })
      .def("__repr__", [](const DeviceMemory& memory) {
        return fmt::format("DeviceMemory(ceiling={}, libraries={}, used={}, peak={}, driver={})",
                           memory.ceiling, memory.libraries, memory.used, memory.peak,
                           memory.driver);
      });

  py::class_<Device>(module, "Device",
                     "Where the arithmetic of a network runs: Device() is the host's cores, "
                     "Device.open names others. A shared handle; rows stay in host memory either "
                     "way.",
                     py::release_gil_before_calling_cpp_dtor())
      .def(py::init<>())
      .def_static(
          "open", &Device::open, py::arg("spec"), py::arg("memory_ceiling") = 0, WithoutGil(),
          "spec: \"cpu\", \"cuda\", \"cuda:N\", or \"auto\": the first CUDA device when there "
          "is one that can be used, else the host.\n"
          "memory_ceiling: bytes that topkv may take of the device's memory; 0: nine tenths "
          "of what is free. Raises Unsupported, saying why, when there is no such device.")
      .def_property_readonly("is_cuda", &Device::is_cuda)
      .def_property_readonly("name", &Device::name)
      .def("memory", &Device::memory, WithoutGil())
      .def("__repr__",
           [](const Device& device) { return fmt::format("<Device {}>", device.name()); });
}

}  // namespace topkv::python
