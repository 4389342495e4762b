// SPDX-License-Identifier: Apache-2.0
#include "testing/gpu_double/fault_plan.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "gpu/cuda_api.h"
#include "gpu/cufile_api.h"
#include "testing/gpu_double/counters.h"

namespace infercluster::gpu_double {
namespace {

struct Name {
  std::string_view text;
  int code;
};

constexpr std::array kCudaErrors = {
    Name{"CUDA_SUCCESS", 0},
    Name{"CUDA_ERROR_INVALID_VALUE", 1},
    Name{"CUDA_ERROR_OUT_OF_MEMORY", 2},
    Name{"CUDA_ERROR_NOT_INITIALIZED", 3},
    Name{"CUDA_ERROR_DEINITIALIZED", 4},
    Name{"CUDA_ERROR_STUB_LIBRARY", 34},
    Name{"CUDA_ERROR_DEVICE_UNAVAILABLE", 46},
    Name{"CUDA_ERROR_NO_DEVICE", 100},
    Name{"CUDA_ERROR_INVALID_DEVICE", 101},
    Name{"CUDA_ERROR_INVALID_CONTEXT", 201},
    Name{"CUDA_ERROR_ECC_UNCORRECTABLE", 214},
    Name{"CUDA_ERROR_NVLINK_UNCORRECTABLE", 220},
    Name{"CUDA_ERROR_OPERATING_SYSTEM", 304},
    Name{"CUDA_ERROR_INVALID_HANDLE", 400},
    Name{"CUDA_ERROR_ILLEGAL_STATE", 401},
    Name{"CUDA_ERROR_NOT_FOUND", 500},
    Name{"CUDA_ERROR_NOT_READY", 600},
    Name{"CUDA_ERROR_ILLEGAL_ADDRESS", 700},
    Name{"CUDA_ERROR_CONTEXT_IS_DESTROYED", 709},
    Name{"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", 712},
    Name{"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", 713},
    Name{"CUDA_ERROR_HARDWARE_STACK_ERROR", 714},
    Name{"CUDA_ERROR_LAUNCH_FAILED", 719},
    Name{"CUDA_ERROR_NOT_PERMITTED", 800},
    Name{"CUDA_ERROR_NOT_SUPPORTED", 801},
    Name{"CUDA_ERROR_SYSTEM_NOT_READY", 802},
    Name{"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", 803},
    Name{"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", 804},
    Name{"CUDA_ERROR_UNKNOWN", 999},
};
constexpr std::array kCuFileErrors = {
    Name{"CU_FILE_DRIVER_NOT_INITIALIZED", 5001},
    Name{"CU_FILE_DRIVER_VERSION_MISMATCH", 5004},
    Name{"CU_FILE_PLATFORM_NOT_SUPPORTED", 5007},
    Name{"CU_FILE_IO_NOT_SUPPORTED", 5008},
    Name{"CU_FILE_DEVICE_NOT_SUPPORTED", 5009},
    Name{"CU_FILE_NVFS_DRIVER_ERROR", 5010},
    Name{"CU_FILE_CUDA_DRIVER_ERROR", 5011},
    Name{"CU_FILE_INVALID_MAPPING_SIZE", 5016},
    Name{"CU_FILE_INVALID_VALUE", 5022},
    Name{"CU_FILE_PERMISSION_DENIED", 5025},
    Name{"CU_FILE_INTERNAL_ERROR", 5030},
    Name{"CU_FILE_NVFS_SETUP_ERROR", 5033},
    Name{"CU_FILE_GPU_MEMORY_PINNING_FAILED", 5036},
    Name{"CU_FILE_IO_ERROR", 5044},
};
constexpr std::array kErrnos = {Name{"EIO", EIO}, Name{"EINVAL", EINVAL}, Name{"EAGAIN", EAGAIN},
                                Name{"ENOMEM", ENOMEM}};
constexpr int kCuFileCodeFirst = 5000;
constexpr int kCuFileCodeLast = 5999;

template <typename Names>
std::optional<int> code_of(const Names& names, std::string_view text) {
  for (const Name& name : names) {
    if (name.text == text) return name.code;
  }
  return std::nullopt;
}

template <typename Number>
std::optional<Number> number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view without_version(std::string_view symbol) {
  return symbol.ends_with("_v2") ? symbol.substr(0, symbol.size() - 3) : symbol;
}

bool is_call(std::string_view name) {
  if (name == "any" || name == "async") return true;
#define IC_SYMBOL(symbol, ...) \
  if (name == without_version(#symbol)) return true;
  IC_CUDA_FUNCTIONS(IC_SYMBOL)
  IC_CUFILE_FUNCTIONS(IC_SYMBOL)
  IC_CUFILE_OPTIONAL_FUNCTIONS(IC_SYMBOL)
#undef IC_SYMBOL
  return false;
}

// Whether "any" counts it: it can fail, and does more than explain a failure.
bool is_any(std::string_view name) {
  return !name.starts_with("cuGetError") && name != "cuFileHandleDeregister";
}

std::optional<Fault> parse_fault(std::string_view text) {
  if (const auto code = code_of(kCudaErrors, text)) return Fault{Fault::Kind::kCuda, *code};
  if (const auto code = code_of(kCuFileErrors, text)) return Fault{Fault::Kind::kCuFile, *code};
  if (const auto code = code_of(kErrnos, text)) return Fault{Fault::Kind::kErrno, *code};
  if (text == "short") return Fault{Fault::Kind::kShortRead, 0};
  if (text.starts_with("short:")) {
    const auto bytes = number<int>(text.substr(6));
    return bytes && *bytes > 0 ? std::optional(Fault{Fault::Kind::kShortRead, *bytes}) : std::nullopt;
  }
  const auto code = number<int>(text);
  if (!code || *code <= 0) return std::nullopt;
  const bool cufile = *code >= kCuFileCodeFirst && *code <= kCuFileCodeLast;
  return Fault{cufile ? Fault::Kind::kCuFile : Fault::Kind::kCuda, *code};
}

bool parse_when(std::string_view text, PlanText::Entry& entry) {
  if (text == "*") return true;
  const bool onwards = text.ends_with('+');
  const auto first = number<std::uint64_t>(onwards ? text.substr(0, text.size() - 1) : text);
  if (!first || *first == 0) return false;
  entry.first = *first;
  if (!onwards) entry.last = *first;
  return true;
}

bool parse_delay(std::string_view value, Settings& settings) {
  const auto dots = value.find("..");
  const auto low = number<std::uint64_t>(value.substr(0, dots));
  const auto high = dots == std::string_view::npos ? low : number<std::uint64_t>(value.substr(dots + 2));
  if (!low || !high || *low > *high) return false;
  settings.delay_min_us = *low;
  settings.delay_max_us = *high;
  return true;
}

template <typename Field, typename Number>
bool store(std::string_view value, Number low, Number high, Field& field) {
  const auto parsed = number<Number>(value);
  if (!parsed || *parsed < low || *parsed > high) return false;
  field = static_cast<Field>(*parsed);
  return true;
}

bool parse_mode(std::string_view value, CuFileMode& mode) {
  if (value == "nvidia_fs") return mode = CuFileMode::kNvidiaFs, true;
  if (value == "p2p") return mode = CuFileMode::kPeerToPeer, true;
  if (value == "compat") return mode = CuFileMode::kCompat, true;
  if (value == "none") return mode = CuFileMode::kNone, true;
  return false;
}

bool parse_setting(std::string_view key, std::string_view value, Settings& settings) {
  constexpr std::uint64_t kMemoryMaxMib = 1 << 20;
  if (key == "devices") return store(value, 0, kDevicesMax, settings.devices);
  if (key == "delay_us") return parse_delay(value, settings);
  if (key == "seed") return store(value, std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(), settings.seed);
  if (key == "driver_version") return store(value, 0, 1'000'000, settings.driver_version);
  if (key == "cufile_version") return store(value, 0, 1'000'000, settings.cufile_version);
  if (key == "cufile_mode") return parse_mode(value, settings.cufile_mode);
  if (key == "cufile_allow_compat") return store(value, 0, 1, settings.cufile_allow_compat);
  if (key == "memory_mib") {
    std::uint64_t mib = 0;
    if (!store(value, std::uint64_t{0}, kMemoryMaxMib, mib)) return false;
    settings.memory_bytes = mib << 20;
    return true;
  }
  if (key.starts_with("attribute:")) {
    const auto attribute = number<int>(key.substr(10));
    const auto parsed = number<int>(value);
    if (!attribute || !parsed) return false;
    settings.attributes[*attribute] = *parsed;
    return true;
  }
  return false;
}

bool parse_entry(std::string_view text, PlanText& plan) {
  const auto equals = text.find('=');
  if (equals == std::string_view::npos) return false;
  const std::string_view key = text.substr(0, equals);
  const std::string_view value = text.substr(equals + 1);
  const auto colon = key.find(':');
  if (colon == std::string_view::npos || key.starts_with("attribute:")) return parse_setting(key, value, plan.settings);
  PlanText::Entry entry;
  entry.call = key.substr(0, colon);
  const auto fault = parse_fault(value);
  if (!is_call(entry.call) || !parse_when(key.substr(colon + 1), entry) || !fault) return false;
  entry.fault = *fault;
  plan.faults.push_back(std::move(entry));
  return true;
}

}  // namespace

std::optional<PlanText> parse_plan(std::string_view text, std::string& error) {
  constexpr std::string_view kSeparators = ",; \n";
  PlanText plan;
  while (!text.empty()) {
    const auto end = std::min(text.find_first_of(kSeparators), text.size());
    const std::string_view entry = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty() || parse_entry(entry, plan)) continue;
    error = "gpu double: the plan's entry '" + std::string(entry) + "' is no setting and no fault: see fault_plan.h";
    return std::nullopt;
  }
  return plan;
}

void FaultPlan::set(PlanText plan) {
  const std::scoped_lock lock(mutex_);
  plan_ = std::move(plan);
  counts_.clear();
  delays_ = 0;
}

Settings FaultPlan::settings() const {
  const std::scoped_lock lock(mutex_);
  return plan_.settings;
}

std::optional<Fault> FaultPlan::match(std::string_view name, std::uint64_t count) const {
  for (const PlanText::Entry& entry : plan_.faults) {
    if (entry.call == name && entry.first <= count && count <= entry.last) {
      ++counters().faults_injected;
      return entry.fault;
    }
  }
  return std::nullopt;
}

std::optional<Fault> FaultPlan::on_call(std::string_view name) {
  const std::scoped_lock lock(mutex_);
  auto fault = match(name, ++counts_.try_emplace(std::string(name), 0).first->second);
  if (!is_any(name)) return fault;
  ++counters().calls;
  auto any = match("any", ++counts_["any"]);
  return fault ? fault : any;
}

std::optional<Fault> FaultPlan::on_async() {
  const std::scoped_lock lock(mutex_);
  ++counters().async_operations;
  return match("async", ++counts_["async"]);
}

std::uint64_t FaultPlan::count(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

std::uint64_t FaultPlan::next_delay_us() {
  const std::scoped_lock lock(mutex_);
  const Settings& settings = plan_.settings;
  if (settings.delay_max_us == 0) return 0;
  return settings.delay_min_us + mix(settings.seed, ++delays_) % (settings.delay_max_us - settings.delay_min_us + 1);
}

FaultPlan& fault_plan() {
  static FaultPlan& instance = *new FaultPlan;  // never destroyed: workers may outlive main()
  return instance;
}

std::uint64_t mix(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t value = seed + index * 0x9E3779B97F4A7C15U;  // splitmix64
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

const char* cuda_error_name(int code) {
  for (const Name& name : kCudaErrors) {
    if (name.code == code) return name.text.data();
  }
  return nullptr;
}

}  // namespace infercluster::gpu_double
