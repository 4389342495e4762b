// SPDX-License-Identifier: Apache-2.0
#include "gpu/cufile_driver.h"

#include <mutex>
#include <optional>

#include "base/log.h"
#include "gpu/library.h"

namespace infercluster::gpu {
namespace {

constexpr const char* kNoCuFileHint =
    "Loads to the GPU go through pinned host memory; GPUDirect Storage needs the CUDA "
    "package libcufile, on the library path or in INFERCLUSTER_LIBCUFILE";

struct Found {
  CuFileApi api;
  std::optional<Error> error;
};

Status find(const std::string& name, CuFileApi& api) {
  auto opened = Library::open(name);
  if (!opened.ok()) {
    return Error(ErrorCode::unsupported, "there is no cuFile: " + opened.error().message()).with_hint(kNoCuFileHint);
  }
  std::string missing;
#define IC_FIND(symbol, returned, parameters)                   \
  api.symbol = opened->function<decltype(api.symbol)>(#symbol); \
  if (api.symbol == nullptr) missing += missing.empty() ? #symbol : ", " #symbol;
  IC_CUFILE_FUNCTIONS(IC_FIND)
#undef IC_FIND
#define IC_FIND(symbol, returned, parameters) api.symbol = opened->function<decltype(api.symbol)>(#symbol);
  IC_CUFILE_OPTIONAL_FUNCTIONS(IC_FIND)
#undef IC_FIND
  if (!missing.empty()) {
    return Error(ErrorCode::unsupported, "cuFile (" + name + ") does not export " + missing).with_hint(kNoCuFileHint);
  }
  return {};
}

std::string_view hint_of(CuFileCode code) {
  switch (code) {
    case CuFileCode::driver_not_initialized:
    case CuFileCode::nvfs_setup_error:
    case CuFileCode::driver_version_mismatch:
      return "Load the kernel module nvidia-fs of the driver's version, or leave compatibility mode allowed in "
             "cufile.json";
    case CuFileCode::invalid_mapping_size:
    case CuFileCode::gpu_memory_pinning_failed:
      return "Another process on this node may have pinned the GPU's BAR1 space: nvidia-smi -q -d MEMORY shows it";
    case CuFileCode::io_not_supported:
    case CuFileCode::invalid_file_type:
      return "GPUDirect Storage needs XFS, or ext4 with data=ordered, or a file system that supports it itself";
    default:
      return "";
  }
}

struct Process {
  std::mutex mutex;
  std::weak_ptr<const CuFileDriver> driver;  // guarded by mutex
};

Process& process() {
  static auto* const made = new Process();  // NOLINT(cppcoreguidelines-owning-memory): owners may end later
  return *made;
}

}  // namespace

std::string_view cufile_text(CuFileCode code) {
  switch (code) {
    case CuFileCode::success:
      return "no error";
    case CuFileCode::driver_not_initialized:
      return "the driver is not loaded";
    case CuFileCode::driver_version_mismatch:
      return "the versions of cuFile and nvidia-fs do not match";
    case CuFileCode::driver_closing:
      return "the driver is being closed";
    case CuFileCode::platform_not_supported:
      return "not supported on this platform";
    case CuFileCode::io_not_supported:
      return "not supported on this file";
    case CuFileCode::device_not_supported:
      return "not supported on this GPU";
    case CuFileCode::nvfs_driver_error:
      return "nvidia-fs failed";
    case CuFileCode::cuda_driver_error:
      return "CUDA failed";
    case CuFileCode::cuda_pointer_invalid:
      return "not a device address";
    case CuFileCode::cuda_memory_type_invalid:
      return "not a memory type that it can use";
    case CuFileCode::cuda_pointer_range_error:
      return "beyond the allocation";
    case CuFileCode::cuda_context_mismatch:
      return "memory of another context";
    case CuFileCode::invalid_mapping_size:
      return "more than can be pinned";
    case CuFileCode::invalid_mapping_range:
      return "beyond what is pinned";
    case CuFileCode::invalid_file_type:
      return "not a type of file that it can read";
    case CuFileCode::invalid_file_open_flag:
      return "the file is open in a mode that it cannot use";
    case CuFileCode::direct_io_not_set:
      return "the file is not open for direct I/O";
    case CuFileCode::invalid_value:
      return "an argument is not valid";
    case CuFileCode::memory_already_registered:
      return "the memory is registered already";
    case CuFileCode::memory_not_registered:
      return "the memory is not registered";
    case CuFileCode::permission_denied:
      return "permission denied";
    case CuFileCode::driver_already_open:
      return "the driver is open already";
    case CuFileCode::handle_not_registered:
      return "the file is not registered";
    case CuFileCode::handle_already_registered:
      return "the file is registered already";
    case CuFileCode::device_not_found:
      return "the GPU was not found";
    case CuFileCode::internal_error:
      return "an internal error";
    case CuFileCode::nvfs_setup_error:
      return "nvidia-fs cannot be set up";
    case CuFileCode::io_disabled:
      return "switched off for this file by the configuration";
    case CuFileCode::gpu_memory_pinning_failed:
      return "GPU memory cannot be pinned";
  }
  return "an error that cufile.h lists";
}

Result<const CuFileApi*> cufile_library() {
  static const Found* const found = [] {
    auto* const made = new Found();  // NOLINT(cppcoreguidelines-owning-memory): as long as the process
    const Status status = find(library_name("INFERCLUSTER_LIBCUFILE", "libcufile.so.0"), made->api);
    if (!status.ok()) made->error = status.error();
    return made;
  }();
  if (found->error) return *found->error;
  return &found->api;
}

Error cufile_error(const Driver& cuda, CuFileError status, std::string_view call, std::string_view action) {
  std::string message = "cannot ";
  message.append(action).append(": ").append(call).append(" failed with code ");
  message += std::to_string(static_cast<int>(status.code)) + " (" + std::string(cufile_text(status.code)) + ")";
  if (status.code == CuFileCode::cuda_driver_error) message += "; " + cuda.describe(status.cuda);
  const bool other_way = status.code != CuFileCode::invalid_value && status.code != CuFileCode::internal_error;
  return Error(other_way ? ErrorCode::unsupported : ErrorCode::io, std::move(message))
      .with_hint(std::string(hint_of(status.code)));
}

Result<std::shared_ptr<const CuFileDriver>> CuFileDriver::get(const std::shared_ptr<Device>& device) {
  const std::scoped_lock lock(process().mutex);  // held while it opens: others wait for the one driver
  if (auto driver = process().driver.lock()) return driver;
  IC_TRY(auto driver, open(device));
  process().driver = driver;
  return driver;
}

Result<std::shared_ptr<const CuFileDriver>> CuFileDriver::open(const std::shared_ptr<Device>& device) {
  IC_TRY(const CuFileApi* api, cufile_library());
  // With a context current: cuFileDriverOpen may fail in a process that has made no CUDA call yet.
  IC_TRY(const Device::Current current, Device::Current::make(*device));
  auto driver = std::make_shared<CuFileDriver>(*api);
  const CuFileError opened = api->cuFileDriverOpen();
  if (opened.code != CuFileCode::success && opened.code != CuFileCode::driver_already_open) {
    const Error error = cufile_error(device->driver(), opened, "cuFileDriverOpen", "start GPUDirect Storage");
    return Error(ErrorCode::unsupported, error.message()).with_hint(error.hint());
  }
  driver->ours = opened.code == CuFileCode::success;
  const CuFileError asked = api->cuFileDriverGetProperties(&driver->properties);
  if (asked.code != CuFileCode::success) {
    return cufile_error(device->driver(), asked, "cuFileDriverGetProperties", "ask GPUDirect Storage what it can do");
  }
  if (api->cuFileGetVersion == nullptr || api->cuFileGetVersion(&driver->version).code != CuFileCode::success) {
    driver->version = 0;
  }
  const bool allowed = (driver->properties.nvfs.driver_control >> kCuFileControlAllowCompat & 1U) != 0;
  driver->compat_allowed = driver->parameter(CuFileBool::allow_compat_mode, allowed) || allowed;
  driver->mode = driver->ask_mode();
  return std::shared_ptr<const CuFileDriver>(std::move(driver));
}

CuFileDriver::~CuFileDriver() {
  if (!ours || !may_call_driver()) return;
  auto* const close = api.cuFileDriverClose_v2 != nullptr ? api.cuFileDriverClose_v2 : api.cuFileDriverClose;
  if (close == nullptr) return;
  const CuFileCode code = close().code;
  if (code != CuFileCode::success) log_warning("cuFileDriverClose: " + std::string(cufile_text(code)));
}

bool CuFileDriver::parameter(CuFileBool which, bool otherwise) const {
  bool value = otherwise;
  if (api.cuFileGetParameterBool == nullptr) return otherwise;
  return api.cuFileGetParameterBool(which, &value).code == CuFileCode::success ? value : otherwise;
}

// By the newest question that this cuFile answers: flags per storage (CUDA 13), a feature bit, a status bit (12.8).
bool CuFileDriver::peer_to_peer() const {
  unsigned flags = 0;
  if (api.cuFileDriverGetP2PFlags != nullptr &&
      api.cuFileDriverGetP2PFlags(static_cast<int>(kCuFileStatusNvme), &flags).code == CuFileCode::success) {
    return (flags >> kCuFileP2pPciDma & 1U) != 0 || (flags >> kCuFileP2pChipToChip & 1U) != 0;
  }
  return (properties.features >> kCuFileFeatureP2p & 1U) != 0 ||
         (properties.nvfs.driver_status >> kCuFileStatusNvmeP2p & 1U) != 0;
}

GdsMode CuFileDriver::ask_mode() const {
  if (parameter(CuFileBool::force_compat_mode, false)) return GdsMode::compat;
  if (peer_to_peer()) return GdsMode::p2p;
  // Properties bear nvidia-fs's version where cuFile has it open.
  if (properties.nvfs.major_version != 0 || properties.nvfs.minor_version != 0) return GdsMode::nvidia_fs;
  return compat_allowed ? GdsMode::compat : GdsMode::none;
}

}  // namespace infercluster::gpu
