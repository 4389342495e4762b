// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/cufile.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "testing/gpu_double/counters.h"
#include "testing/gpu_double/driver.h"
#include "testing/gpu_double/guard.h"

namespace infercluster::gpu_double {
namespace {

using namespace infercluster::gpu;  // NOLINT(google-build-using-namespace): the API that this file implements

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kLargePageBytes = std::size_t{64} << 10;  // of device memory; smaller mappings go by kPageBytes
constexpr std::size_t kBounceBytes = std::size_t{1} << 20;

CuFileError error_of(CuFileCode code) {
  return {code, CuResult::success};
}
const CuFileError kSuccess = {CuFileCode::success, CuResult::success};

CuFileError error_of(const Fault& fault) {
  if (fault.kind == Fault::Kind::kCuFile) return error_of(static_cast<CuFileCode>(fault.code));
  if (fault.kind == Fault::Kind::kCuda) return {CuFileCode::cuda_driver_error, static_cast<CuResult>(fault.code)};
  return error_of(CuFileCode::internal_error);
}

bool is_open(Driver& driver) {
  const std::scoped_lock lock(driver.cufile.mutex);
  return driver.cufile.driver_opens > 0;
}

// body(driver), unless the plan has it fail or the driver was not opened.
template <typename Body>
CuFileError call_file(std::string_view name, Body body) {
  Driver& driver = Driver::instance();
  if (const auto fault = fault_plan().on_call(name)) return error_of(*fault);
  if (!is_open(driver)) return error_of(CuFileCode::driver_not_initialized);
  return body(driver);
}

// The mode that files are read in: what the plan says, when cuFile may fall back and has to.
std::optional<CuFileMode> mode_of(const Settings& settings) {
  if (settings.cufile_mode == CuFileMode::kNone) return std::nullopt;
  if (settings.cufile_mode == CuFileMode::kCompat && !settings.cufile_allow_compat) return std::nullopt;
  return settings.cufile_mode;
}

CuFileError close_driver() {
  Driver& driver = Driver::instance();
  const auto fault = fault_plan().on_call("cuFileDriverClose");
  std::optional<int> device;
  {
    const std::scoped_lock lock(driver.cufile.mutex);
    if (driver.cufile.driver_opens == 0) return error_of(CuFileCode::driver_not_initialized);
    --counters().cufile_driver_opens;
    if (--driver.cufile.driver_opens == 0) {
      device = std::exchange(driver.cufile.retained_device, std::nullopt);
      if (!driver.cufile.files.empty()) count_violation("cuFileDriverClose with files still registered");
      if (!driver.cufile.buffers.empty()) count_violation("cuFileDriverClose with buffers still registered");
    }
  }
  if (device) driver.release_primary(*device);
  return fault ? error_of(*fault) : kSuccess;
}

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};

// Reads [offset, offset + bytes) of a file that may want aligned I/O. The bytes read, or -1 with errno.
ssize_t read_aligned(int fd, char* target, std::size_t bytes, std::size_t offset) {
  const std::unique_ptr<char, Free> bounce(static_cast<char*>(std::aligned_alloc(kPageBytes, kBounceBytes)));
  std::size_t done = 0;
  while (done < bytes) {
    const std::size_t skip = (offset + done) % kPageBytes;
    const std::size_t wanted = std::min(bytes - done, kBounceBytes - skip);
    const std::size_t ask = (skip + wanted + kPageBytes - 1) / kPageBytes * kPageBytes;
    const ssize_t got = ::pread(fd, bounce.get(), ask, static_cast<off_t>(offset + done - skip));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (static_cast<std::size_t>(got) <= skip) break;
    const std::size_t useful = std::min(static_cast<std::size_t>(got) - skip, wanted);
    std::memcpy(target + done, bounce.get() + skip, useful);
    done += useful;
    if (static_cast<std::size_t>(got) < ask) break;
  }
  return static_cast<ssize_t>(done);
}

std::optional<Driver::CuFile::File> file_of(Driver& driver, CuFileHandle handle) {
  const std::scoped_lock lock(driver.cufile.mutex);
  const auto found = driver.cufile.files.find(std::bit_cast<Handle>(handle));
  return found == driver.cufile.files.end() ? std::nullopt : std::optional(found->second);
}

bool is_buffer(Driver& driver, Address address, std::size_t bytes) {
  const std::scoped_lock lock(driver.cufile.mutex);
  auto found = driver.cufile.buffers.upper_bound(address);
  if (found == driver.cufile.buffers.begin()) return false;
  --found;
  const std::size_t offset = address - found->first;
  return offset < found->second && bytes <= found->second - offset;
}

// The plan may cut a read short; as a device does, at a page boundary where there is one.
std::size_t shortened(std::size_t bytes, const std::optional<Fault>& fault) {
  if (!fault || fault->kind != Fault::Kind::kShortRead) return bytes;
  if (fault->code != 0) return std::min(bytes, static_cast<std::size_t>(fault->code));
  const std::size_t half = bytes / 2;
  return half >= kPageBytes ? half / kPageBytes * kPageBytes : half;
}

ssize_t negative(CuFileCode code) {
  return -static_cast<ssize_t>(code);
}

// Why the target of a read cannot be used, if so.
std::optional<CuFileCode> refuse_target(Driver& driver, Address address, std::size_t bytes) {
  std::shared_ptr<Context> context;
  if (driver.current(context) != CuResult::success) return CuFileCode::cuda_driver_error;
  const auto device = driver.device_of(address);
  if (!device) return CuFileCode::cuda_pointer_invalid;
  if (*device != context->device) return CuFileCode::cuda_context_mismatch;
  if (!driver.memory(*device).find(address, bytes)) return CuFileCode::cuda_pointer_range_error;
  return std::nullopt;
}

// Synchronous, and in no order with any stream: a queued operation on the same memory is a mistake of the program.
ssize_t read_into(Driver& driver, int device, int fd, Address address, std::size_t bytes, std::size_t offset) {
  DeviceMemory& memory = driver.memory(device);
  const Rows rows{address, bytes, bytes, 1};
  bool alone = false;
  const DeviceMemory::Ticket ticket = memory.begin(rows, alone);
  if (!alone) {
    count_violation("cuFileRead into memory that a queued operation or another read uses");
    driver.wait_for_device(device);
  }
  memory.poison(rows);
  gate().pass();
  const std::uint64_t delay_us = fault_plan().next_delay_us();
  if (delay_us != 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
  const ssize_t got = read_aligned(fd, memory.bytes(address), bytes, offset);
  const int error = errno;
  memory.end(ticket);
  errno = error;
  return got;
}

void count_read(Driver& driver, Address address, std::size_t asked, std::size_t file_offset, bool compat, ssize_t got) {
  Counters& all = counters();
  ++all.cufile_reads;
  all.cufile_bytes += static_cast<std::uint64_t>(std::max<ssize_t>(got, 0));
  if ((file_offset | address | asked) % kPageBytes != 0) ++all.cufile_unaligned;
  if (!is_buffer(driver, address, asked)) ++all.cufile_unregistered;
  if (compat) ++all.cufile_compat_reads;
}

CuFileError register_file(Driver& driver, CuFileHandle* handle, int fd) {
  struct stat status {};
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fstat(fd, &status) != 0) return error_of(CuFileCode::invalid_value);
  if (!S_ISREG(status.st_mode)) return error_of(CuFileCode::invalid_file_type);
  const std::scoped_lock lock(driver.cufile.mutex);
  for (const auto& [other, file] : driver.cufile.files) {
    if (file.fd == fd) return error_of(CuFileCode::handle_already_registered);
  }
  const Handle made = driver.next_handle();
  driver.cufile.files.emplace(made, Driver::CuFile::File{fd, status.st_dev, status.st_ino, (flags & O_DIRECT) != 0});
  ++counters().cufile_handles;
  *handle = std::bit_cast<CuFileHandle>(made);
  return kSuccess;
}

// The rules of mappings: reference sizes of nvidia-fs, which answers 5016 to any other.
CuFileError register_buffer(Driver& driver, Address address, std::size_t bytes) {
  if (const auto why = refuse_target(driver, address, bytes)) return error_of(*why);
  const std::size_t unit = bytes < kLargePageBytes ? kPageBytes : kLargePageBytes;
  if (bytes % unit != 0) return error_of(CuFileCode::invalid_mapping_size);
  const std::scoped_lock lock(driver.cufile.mutex);
  auto next = driver.cufile.buffers.lower_bound(address);
  const bool meets_next = next != driver.cufile.buffers.end() && next->first - address < bytes;
  const bool meets_previous =
      next != driver.cufile.buffers.begin() && address - std::prev(next)->first < std::prev(next)->second;
  if (meets_next || meets_previous) return error_of(CuFileCode::memory_already_registered);
  driver.cufile.buffers.emplace(address, bytes);
  ++counters().cufile_buffers;
  return kSuccess;
}

}  // namespace
}  // namespace infercluster::gpu_double

namespace infercluster::gpu {

using namespace infercluster::gpu_double;  // NOLINT(google-build-using-namespace): what this API is made of

CuFileError ic_gpu_double_cuFileDriverOpen() {
  Driver& driver = Driver::instance();
  if (const auto fault = fault_plan().on_call("cuFileDriverOpen")) return error_of(*fault);
  if (!mode_of(fault_plan().settings())) return error_of(CuFileCode::driver_not_initialized);
  if (!driver.initialized) return {CuFileCode::cuda_driver_error, CuResult::not_initialized};
  const std::scoped_lock lock(driver.cufile.mutex);
  // Opened without a current context, the real one makes itself one, on the first device.
  if (driver.cufile.driver_opens == 0 && driver.current_handle() == 0) {
    driver.retain_primary(0);
    driver.cufile.retained_device = 0;
  }
  ++driver.cufile.driver_opens;
  ++counters().cufile_driver_opens;
  return kSuccess;
}

CuFileError ic_gpu_double_cuFileDriverClose() {
  return close_driver();
}
CuFileError ic_gpu_double_cuFileDriverClose_v2() {
  return close_driver();
}

CuFileError ic_gpu_double_cuFileDriverGetProperties(CuFileProperties* properties) {
  Driver::instance();
  if (const auto fault = fault_plan().on_call("cuFileDriverGetProperties")) return error_of(*fault);
  if (properties == nullptr) return error_of(CuFileCode::invalid_value);
  const Settings settings = fault_plan().settings();
  *properties = {};
  properties->nvfs.max_direct_io_kib = 16384;
  properties->max_device_cache_kib = 131072;
  properties->max_device_pinned_kib = 33554432;
  properties->per_buffer_cache_kib = 1024;
  properties->max_batch_io_size = 128;
  if (settings.cufile_allow_compat) properties->nvfs.driver_control |= 1U << kCuFileControlAllowCompat;
  if (settings.cufile_mode == CuFileMode::kNvidiaFs) {
    properties->nvfs.major_version = 2;
    properties->nvfs.minor_version = 28;
    properties->nvfs.driver_status = 1U << kCuFileStatusNvme | 1U << kCuFileStatusNvmeOf;
  } else if (settings.cufile_mode == CuFileMode::kPeerToPeer) {
    properties->nvfs.driver_status = 1U << kCuFileStatusNvme | 1U << kCuFileStatusNvmeP2p;
    properties->features = 1U << kCuFileFeatureP2p;
  }
  return kSuccess;
}

CuFileError ic_gpu_double_cuFileGetVersion(int* version) {
  Driver::instance();
  if (const auto fault = fault_plan().on_call("cuFileGetVersion")) return error_of(*fault);
  if (version == nullptr) return error_of(CuFileCode::invalid_value);
  *version = fault_plan().settings().cufile_version;
  return kSuccess;
}

CuFileError ic_gpu_double_cuFileGetParameterBool(CuFileBool parameter, bool* value) {
  Driver::instance();
  if (const auto fault = fault_plan().on_call("cuFileGetParameterBool")) return error_of(*fault);
  if (value == nullptr) return error_of(CuFileCode::invalid_value);
  const Settings settings = fault_plan().settings();
  switch (parameter) {
    case CuFileBool::allow_compat_mode:
      *value = settings.cufile_allow_compat;
      return kSuccess;
    case CuFileBool::force_compat_mode:
      *value = false;
      return kSuccess;
    case CuFileBool::use_pci_p2pdma:
      *value = settings.cufile_mode == CuFileMode::kPeerToPeer;
      return kSuccess;
  }
  return error_of(CuFileCode::invalid_value);
}

CuFileError ic_gpu_double_cuFileDriverGetP2PFlags(int status_flag, unsigned* p2p_flags) {
  return call_file("cuFileDriverGetP2PFlags", [&](Driver&) {
    if (p2p_flags == nullptr) return error_of(CuFileCode::invalid_value);
    const CuFileMode mode = fault_plan().settings().cufile_mode;
    *p2p_flags = 0;
    if (static_cast<unsigned>(status_flag) != kCuFileStatusNvme) return kSuccess;
    if (mode == CuFileMode::kPeerToPeer) *p2p_flags = 1U << kCuFileP2pPciDma;
    if (mode == CuFileMode::kNvidiaFs) *p2p_flags = 1U << kCuFileP2pNvidiaFs;
    return kSuccess;
  });
}

CuFileError ic_gpu_double_cuFileHandleRegister(CuFileHandle* handle, CuFileDescriptor* descriptor) {
  return call_file("cuFileHandleRegister", [&](Driver& driver) {
    if (handle == nullptr || descriptor == nullptr) return error_of(CuFileCode::invalid_value);
    if (descriptor->type != kCuFileHandleTypeFd) return error_of(CuFileCode::io_not_supported);
    return register_file(driver, handle, descriptor->handle.fd);
  });
}

void ic_gpu_double_cuFileHandleDeregister(CuFileHandle handle) {
  Driver& driver = Driver::instance();
  static_cast<void>(fault_plan().on_call("cuFileHandleDeregister"));  // it has no way to fail
  const std::scoped_lock lock(driver.cufile.mutex);
  if (driver.cufile.files.erase(std::bit_cast<Handle>(handle)) == 1) {
    --counters().cufile_handles;
  } else {
    count_violation("cuFileHandleDeregister of a handle that is not registered");
  }
}

CuFileError ic_gpu_double_cuFileBufRegister(const void* device_base, std::size_t bytes, int flags) {
  return call_file("cuFileBufRegister", [&](Driver& driver) {
    if (device_base == nullptr || bytes == 0 || flags != 0) return error_of(CuFileCode::invalid_value);
    return register_buffer(driver, std::bit_cast<Address>(device_base), bytes);
  });
}

CuFileError ic_gpu_double_cuFileBufDeregister(const void* device_base) {
  Driver& driver = Driver::instance();
  const auto fault = fault_plan().on_call("cuFileBufDeregister");
  const std::scoped_lock lock(driver.cufile.mutex);
  if (driver.cufile.buffers.erase(std::bit_cast<Address>(device_base)) == 0) {
    return error_of(CuFileCode::memory_not_registered);
  }
  --counters().cufile_buffers;
  return fault ? error_of(*fault) : kSuccess;
}

ssize_t ic_gpu_double_cuFileRead(CuFileHandle handle, void* device_base, std::size_t bytes, off_t file_offset,
                                 off_t device_offset) {
  Driver& driver = Driver::instance();
  const auto fault = fault_plan().on_call("cuFileRead");
  if (fault && fault->kind == Fault::Kind::kErrno) {
    errno = fault->code;
    return -1;
  }
  if (fault && fault->kind != Fault::Kind::kShortRead) return negative(error_of(*fault).code);
  const auto file = file_of(driver, handle);
  if (!file) return negative(CuFileCode::handle_not_registered);
  if (file_offset < 0 || device_offset < 0) return negative(CuFileCode::invalid_value);
  const Address address = std::bit_cast<Address>(device_base) + static_cast<Address>(device_offset);
  if (const auto why = refuse_target(driver, address, bytes)) return negative(*why);
  struct stat status {};
  if (::fstat(file->fd, &status) != 0) return -1;
  if (status.st_dev != file->device || status.st_ino != file->inode) {
    count_violation("a descriptor was closed, and opened for another file, while registered with cuFile");
    return negative(CuFileCode::handle_not_registered);
  }
  const auto offset = static_cast<std::size_t>(file_offset);
  const std::size_t count = shortened(bytes, fault);
  const ssize_t got = read_into(driver, *driver.device_of(address), file->fd, address, count, offset);
  const int error = errno;
  const bool compat = fault_plan().settings().cufile_mode == CuFileMode::kCompat || !file->direct;
  count_read(driver, address, bytes, offset, compat, got);
  errno = error;
  return got;
}

}  // namespace infercluster::gpu
