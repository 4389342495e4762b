// SPDX-License-Identifier: Apache-2.0
#include "gpu/driver.h"

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>

#include "gpu/library.h"

namespace infercluster::gpu {
namespace {

constexpr const char* kNoDriverHint = "Load to host memory, or run on a machine with an NVIDIA GPU and its driver";
constexpr const char* kUpdateHint = "Update the NVIDIA driver to 525.60 or newer";

// What to do about a result, where there is something that a user can do.
std::string_view hint_of(CuResult result) {
  switch (result) {
    case CuResult::no_device:
      return "Check that nvidia-smi lists a GPU, that CUDA_VISIBLE_DEVICES does not hide it, and that the container "
             "was "
             "started with GPUs";
    case CuResult::stub_library:
      return "The library is a stub for linking: put the driver's own libcuda.so.1 first in the library path";
    case CuResult::system_driver_mismatch:
    case CuResult::compat_not_supported_on_device:
      return "The driver's library and kernel module differ: reboot after a driver update, or update the container's "
             "compatibility package";
    case CuResult::system_not_ready:
      return "Start the fabric manager, or wait until it is up: nvidia-smi -q shows its state";
    case CuResult::out_of_memory:
      return "Free memory on the GPU, or load less of the model there: nvidia-smi lists who uses it";
    case CuResult::invalid_device:
      return "Count from 0; CUDA_VISIBLE_DEVICES may hide devices";
    case CuResult::ecc_uncorrectable:
    case CuResult::illegal_address:
    case CuResult::launch_failed:
    case CuResult::context_is_destroyed:
      return "The GPU's context is lost: start the process again, and look for Xid messages in the kernel's log";
    case CuResult::not_permitted:
      return "The device may be in exclusive mode: nvidia-smi -q -d COMPUTE shows it";
    default:
      return "";
  }
}

ErrorCode code_of(CuResult result) {
  switch (result) {
    case CuResult::out_of_memory:
      return ErrorCode::out_of_memory;
    case CuResult::invalid_device:
      return ErrorCode::invalid_argument;
    case CuResult::not_permitted:
      return ErrorCode::permission;
    case CuResult::no_device:
    case CuResult::stub_library:
    case CuResult::not_supported:
    case CuResult::system_not_ready:
    case CuResult::system_driver_mismatch:
    case CuResult::compat_not_supported_on_device:
      return ErrorCode::unsupported;
    default:
      return ErrorCode::io;
  }
}

// The process's driver, or why there is none. Owned by the process that asked first.
struct Found {
  std::optional<Driver> driver;
  std::optional<Error> error;
};

std::atomic<pid_t> found_by{0};

const Found& found() {
  static const Found* const once = [] {
    auto* const made =
        new Found();  // NOLINT(cppcoreguidelines-owning-memory): as long as the process, like the library
    auto loaded = Driver::load(library_name("INFERCLUSTER_LIBCUDA", "libcuda.so.1"));
    if (loaded.ok()) {
      made->driver = std::move(loaded).value();
    } else {
      made->error = std::move(loaded).error();
    }
    return made;
  }();
  return *once;
}

}  // namespace

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool is_lost(CuResult result) {
  return result == CuResult::ecc_uncorrectable || result == CuResult::illegal_address ||
         result == CuResult::launch_failed || result == CuResult::context_is_destroyed;
}

Result<Driver> Driver::load(const std::string& library) {
  auto opened = Library::open(library);
  if (!opened.ok()) {
    return Error(ErrorCode::unsupported, "there is no NVIDIA driver: " + opened.error().message())
        .with_hint(kNoDriverHint);
  }
  Driver driver;
  driver.library_ = library;
  std::string missing;
#define IC_FIND(symbol, parameters)                                             \
  driver.api_.symbol = opened->function<decltype(driver.api_.symbol)>(#symbol); \
  if (driver.api_.symbol == nullptr) missing += missing.empty() ? #symbol : ", " #symbol;
  IC_CUDA_FUNCTIONS(IC_FIND)
#undef IC_FIND
  // An old driver may lack some functions: its version says more than their names.
  IC_CHECK(driver.check_version());
  if (!missing.empty()) {
    return Error(ErrorCode::unsupported, "the NVIDIA driver (" + library + ", CUDA " +
                                             cuda_version_text(driver.version_) + ") does not export " + missing)
        .with_hint(kUpdateHint);
  }
  const CuResult result = driver.api_.cuInit(0);
  if (result != CuResult::success) {
    const Error error = driver.error(result, "cuInit", "start the NVIDIA driver");
    return Error(ErrorCode::unsupported, error.message())
        .with_hint(error.hint().empty() ? kNoDriverHint : error.hint());
  }
  return driver;
}

Status Driver::check_version() {
  if (api_.cuDriverGetVersion == nullptr) {
    return Error(ErrorCode::unsupported, library_ + " is no NVIDIA driver: it does not export cuDriverGetVersion")
        .with_hint(kNoDriverHint);
  }
  const CuResult result = api_.cuDriverGetVersion(&version_);
  if (result != CuResult::success) {
    const Error error = this->error(result, "cuDriverGetVersion", "ask the NVIDIA driver for its version");
    return Error(ErrorCode::unsupported, error.message())
        .with_hint(error.hint().empty() ? kNoDriverHint : error.hint());
  }
  if (version_ < kCudaVersionMin) {
    return Error(ErrorCode::unsupported, "the NVIDIA driver (" + library_ + ") supports CUDA " +
                                             cuda_version_text(version_) + ", and " +
                                             cuda_version_text(kCudaVersionMin) + " or newer is needed")
        .with_hint(kUpdateHint);
  }
  return {};
}

std::string Driver::describe(CuResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api_.cuGetErrorName != nullptr) static_cast<void>(api_.cuGetErrorName(result, &name));
  if (api_.cuGetErrorString != nullptr) static_cast<void>(api_.cuGetErrorString(result, &text));
  std::string description = name != nullptr ? name : "an error that CUDA has no name for";
  description += text != nullptr ? " (" + std::string(text) + ", " : " (";
  return description + std::to_string(static_cast<int>(result)) + ")";
}

Error Driver::error(CuResult result, std::string_view call, std::string_view action) const {
  std::string message = "cannot ";
  message.append(action).append(": ").append(call).append(" failed with ").append(describe(result));
  Error error(code_of(result), std::move(message));
  return std::move(error).with_hint(std::string(hint_of(result)));
}

Result<const Driver*> driver() {
  pid_t nobody = 0;
  found_by.compare_exchange_strong(nobody, ::getpid());
  if (!may_call_driver()) {
    return Error(ErrorCode::unsupported,
                 "this process was forked after the GPU was first asked for, and CUDA does not survive a fork")
        .with_hint("Start workers by spawn or exec instead of fork");
  }
  const Found& it = found();
  if (it.error) return *it.error;
  return &*it.driver;
}

bool may_call_driver() {
  const pid_t owner = found_by.load();
  return owner == 0 || owner == ::getpid();
}

}  // namespace infercluster::gpu
