#include <fmt/format.h>
#include <pybind11/stl.h>

#include "bindings/src/handles.h"

namespace topkv::python {

void bind_device(py::module_& module) {
  py::class_<DeviceMemory>(
      module, "DeviceMemory",
      "Bytes of a CUDA device's memory; all 0 for the host. items: the parts of `used`, as (what, "
      "bytes).")
      .def_readonly("ceiling", &DeviceMemory::ceiling, "The most that topkv may take.")
      .def_readonly("libraries", &DeviceMemory::libraries,
                    "The part that the CUDA context takes and that is kept for its libraries.")
      .def_readonly("used", &DeviceMemory::used, "Allocated now, libraries included.")
      .def_readonly("peak", &DeviceMemory::peak, "The most allocated at a time.")
      .def_readonly("driver", &DeviceMemory::driver,
                    "The memory of this process, by the driver's count; 0: unknown.")
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
                     "A device that runs a network's arithmetic. Device() is the host's cores; "
                     "Device.open opens others. A shared handle. Rows stay in host memory in both "
                     "cases.",
                     py::release_gil_before_calling_cpp_dtor())
      .def(py::init<>())
      .def_static(
          "open", &Device::open, py::arg("spec"), py::arg("memory_ceiling") = 0, WithoutGil(),
          "Opens a device.\n\n"
          "spec: \"cpu\", \"cuda\", \"cuda:N\", or \"auto\": the first usable CUDA device, else "
          "the host.\n\n"
          "memory_ceiling: bytes of the device's memory that topkv may take; 0: nine tenths of the "
          "free memory.\n\n"
          "Raises Unsupported, with the reason, if there is no such device.")
      .def_property_readonly("is_cuda", &Device::is_cuda)
      .def_property_readonly("name", &Device::name)
      .def("memory", &Device::memory, WithoutGil())
      .def("__repr__",
           [](const Device& device) { return fmt::format("<Device {}>", device.name()); });
}

}  // namespace topkv::python
