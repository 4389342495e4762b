// SPDX-License-Identifier: Apache-2.0
// libcufile.so.0: passes each call on to libcuda.so.1 of the double, which holds the device memory and all state.
#include "testing/gpu_double/cufile.h"

namespace infercluster::gpu {

IC_EXPORT CuFileError cuFileDriverOpen() {
  return ic_gpu_double_cuFileDriverOpen();
}
IC_EXPORT CuFileError cuFileDriverClose() {
  return ic_gpu_double_cuFileDriverClose();
}
IC_EXPORT CuFileError cuFileDriverClose_v2() {
  return ic_gpu_double_cuFileDriverClose_v2();
}
IC_EXPORT CuFileError cuFileDriverGetProperties(CuFileProperties* properties) {
  return ic_gpu_double_cuFileDriverGetProperties(properties);
}
IC_EXPORT CuFileError cuFileGetVersion(int* version) {
  return ic_gpu_double_cuFileGetVersion(version);
}
IC_EXPORT CuFileError cuFileGetParameterBool(CuFileBool parameter, bool* value) {
  return ic_gpu_double_cuFileGetParameterBool(parameter, value);
}
IC_EXPORT CuFileError cuFileDriverGetP2PFlags(int status_flag, unsigned* p2p_flags) {
  return ic_gpu_double_cuFileDriverGetP2PFlags(status_flag, p2p_flags);
}
IC_EXPORT CuFileError cuFileHandleRegister(CuFileHandle* handle, CuFileDescriptor* descriptor) {
  return ic_gpu_double_cuFileHandleRegister(handle, descriptor);
}
IC_EXPORT void cuFileHandleDeregister(CuFileHandle handle) {
  ic_gpu_double_cuFileHandleDeregister(handle);
}
IC_EXPORT CuFileError cuFileBufRegister(const void* device_base, std::size_t bytes, int flags) {
  return ic_gpu_double_cuFileBufRegister(device_base, bytes, flags);
}
IC_EXPORT CuFileError cuFileBufDeregister(const void* device_base) {
  return ic_gpu_double_cuFileBufDeregister(device_base);
}
IC_EXPORT ssize_t cuFileRead(CuFileHandle handle, void* device_base, std::size_t bytes, off_t file_offset,
                             off_t device_offset) {
  return ic_gpu_double_cuFileRead(handle, device_base, bytes, file_offset, device_offset);
}

}  // namespace infercluster::gpu
