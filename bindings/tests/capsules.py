"""Arrays that have only __dlpack__, made with ctypes: of any dtype, device and version."""

import ctypes


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class DlpackOnly:
    """The memory of a NumPy array under another description. `deleted` counts deleter calls."""

    def __init__(self, array, code=2, bits=None, lanes=1, device=(1, 0), version=None, flags=0,
                 strides=True):
        self.array = array
        self.device = device
        self.version = version
        self.deleted = 0
        self.asked = None
        ndim = array.ndim
        self._shape = (ctypes.c_int64 * ndim)(*array.shape)
        self._strides = (ctypes.c_int64 * ndim)(*(s // array.itemsize for s in array.strides))
        tensor = _Tensor(array.ctypes.data - 8, *device, ndim, code, bits or array.itemsize * 8,
                         lanes, self._shape, self._strides if strides else None, 8)

        def count(_):
            self.deleted += 1

        self._deleter = _DELETER(count)
        deleter = ctypes.cast(self._deleter, ctypes.c_void_p)
        if version:
            self._managed = _Versioned(*version, None, deleter, flags, tensor)
        else:
            self._managed = _Managed(tensor, None, deleter)
        self._name = b"dltensor_versioned" if version else b"dltensor"

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **arguments):
        if "max_version" in arguments and not self.version:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.asked = arguments
        return _new_capsule(ctypes.addressof(self._managed), self._name, None)
