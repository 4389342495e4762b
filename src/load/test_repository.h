// SPDX-License-Identifier: Apache-2.0
// For tests of this module: makes repositories and holds what was loaded against them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpu/device.h"
#include "gpu/memory.h"
#include "load/job.h"
#include "load/repository.h"
#include "load/seal.h"
#include "os/file.h"
#include "os/page_cache.h"
#include "safetensors/header.h"
#include "testing/gpu_double/control.h"
#include "testing/temp_dir.h"

namespace infercluster::load {

// Bytes of a tensor, wherever it is.
inline std::string bytes_of(const LoadedTensor& tensor) {
  std::string bytes(tensor.bytes, '\0');
  if (tensor.bytes == 0) return bytes;
  if (tensor.device < 0) {
    std::memcpy(bytes.data(), tensor.data, bytes.size());
    return bytes;
  }
  const memory::Span span{memory::Kind::cuda, tensor.device, reinterpret_cast<std::uintptr_t>(tensor.data),
                          tensor.bytes};
  const auto device = gpu::Device::open(tensor.device).value();
  const Status copied = gpu::copy_to_host(device, span, reinterpret_cast<std::byte*>(bytes.data()));
  EXPECT_TRUE(copied.ok()) << copied.error().to_string();
  return bytes;
}

class TestRepository {
 public:
  // Writes `file` with these tensors (begin and end unset) and random bytes. `header_padding` more spaces in the header
  // shift the data: any alignment.
  void add_file(const std::string& file, std::vector<safetensors::Tensor> tensors, std::size_t header_padding = 0) {
    std::string content = safetensors::build_header(tensors, std::nullopt).value();
    content.append(header_padding, ' ');
    const std::uint64_t length = content.size() - 8;
    std::memcpy(content.data(), &length, 8);
    for (const safetensors::Tensor& tensor : tensors) {
      std::string bytes(tensor.bytes(), '\0');
      for (std::size_t i = 0; i < bytes.size(); i += 8) {
        const std::uint64_t word = random_();
        std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(8, bytes.size() - i));
      }
      content += bytes;
      expected_[tensor.name] = std::move(bytes);
    }
    directory_.write(file, content);
  }

  [[nodiscard]] std::string path(const std::string& file = "") const {
    return file.empty() ? directory_.path().string() : directory_.file(file);
  }
  // None of the file's pages is in the page cache afterwards.
  void make_cold(const std::string& file) const {
    const Fd fd = os::open_for_reading(path(file)).value();
    ASSERT_EQ(::fsync(fd.get()), 0);
    ASSERT_TRUE(os::drop_page_cache(fd).ok());
  }
  void seal(const std::string& file) const {
    const std::string bytes = os::read_small_file(path(file), std::uint64_t{1} << 30).value();
    SealBuilder builder;
    builder.add(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(os::write_file_atomically(seal_path_of(path(file), ""), builder.finish().serialize()).ok());
  }
  [[nodiscard]] std::shared_ptr<const Repository> open() const {
    return std::make_shared<const Repository>(open_repository(path()).value());
  }
  [[nodiscard]] const std::string& expected(const std::string& name) const { return expected_.at(name); }
  [[nodiscard]] std::size_t size() const { return expected_.size(); }

  void expect_equal(const LoadedTensor& tensor) const {
    const std::string& bytes = expected(tensor.name);
    ASSERT_EQ(tensor.bytes, bytes.size()) << tensor.name;
    ASSERT_NE(tensor.data, nullptr) << tensor.name;
    const std::uint64_t alignment = tensor.device < 0 ? safetensors::alignment_of(tensor.dtype) : gpu::kDeviceAlignment;
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % alignment, 0U) << tensor.name;
    ASSERT_TRUE(bytes_of(tensor) == bytes) << tensor.name;
  }
  // Of memory of the caller, which has what alignment it has.
  void expect_bytes(const Loaded& loaded) const {
    ASSERT_EQ(loaded.tensors.size(), expected_.size());
    for (const LoadedTensor& tensor : loaded.tensors)
      ASSERT_TRUE(bytes_of(tensor) == expected(tensor.name)) << tensor.name;
  }
  void expect_equal(const Loaded& loaded) const {
    ASSERT_EQ(loaded.tensors.size(), expected_.size());
    for (const LoadedTensor& tensor : loaded.tensors) expect_equal(tensor);
  }

 private:
  testing::TempDir directory_;
  std::mt19937_64 random_{5};
  std::map<std::string, std::string> expected_;
};

inline safetensors::Tensor tensor_of(std::string name, safetensors::Dtype dtype, std::vector<std::uint64_t> shape) {
  return {std::move(name), dtype, std::move(shape), 0, 0};
}

// Memory of a caller, on the host (at an odd address) or on a device.
class CallerMemory {
 public:
  CallerMemory(std::uint64_t bytes, int device) : bytes_(bytes) {
    if (device < 0) {
      host_.resize(bytes + 1);
    } else {
      device_ =
          gpu::DeviceMemory::allocate(gpu::Device::open(device).value(), std::max<std::uint64_t>(bytes, 1)).value();
    }
  }
  [[nodiscard]] memory::Span span() const {
    if (device_) return device_->span().part(0, bytes_);
    return memory::host_span(host_.data() + 1, bytes_);
  }

 private:
  std::uint64_t bytes_;
  std::vector<std::byte> host_;
  std::shared_ptr<gpu::DeviceMemory> device_;
};

// The device of that ordinal: of the double, or of a real driver, which may have fewer.
inline int device_there(int ordinal) {
  static const bool on_double = gpu_double::Control::is_there();
  if (on_double || ordinal < 0) return ordinal;
  const auto count = gpu::device_count();
  return count.ok() && ordinal < *count ? ordinal : 0;
}

struct Way {
  io::BackendChoice backend;
  int device;  // -1: the host
};

inline void PrintTo(const Way& way, std::ostream* out) {  // NOLINT(readability-identifier-naming): gtest's name
  *out << (way.backend == io::BackendChoice::uring ? "io_uring" : "threads") << " to device " << way.device;
}

// Every test of a suite that derives from this runs on each backend, to host memory and to a device: of the driver's
// double, or in the device check of a real driver.
class OnEachWay : public ::testing::TestWithParam<Way> {
 protected:
  OnEachWay() {
    options_.backend.choice = GetParam().backend;
    if (!on_device()) return;
    options_.device.emplace().ordinal = device_there(GetParam().device);
    if (!gpu_double::Control::is_there()) return;
    double_.emplace();
    double_->reset();
    double_->set_plan("delay_us=0..400 seed=" + std::to_string(GetParam().device + 5));
  }
  void TearDown() override {
    if (!double_) return;
    double_->finish();
    EXPECT_EQ(double_->counter("violations"), 0U);
    EXPECT_EQ(double_->counter("live"), 0U);  // allocations, streams, events, threads, contexts
    EXPECT_EQ(double_->counter("contexts_created:" + std::to_string(1 - GetParam().device)), 0U);
  }
  [[nodiscard]] static bool on_device() { return GetParam().device >= 0; }
  [[nodiscard]] static CallerMemory caller_memory(std::uint64_t bytes) {
    return {bytes, device_there(GetParam().device)};
  }

  Result<Loaded> load(const std::shared_ptr<const Repository>& repository) {
    auto job = Job::start(repository, options_, environment_);
    if (!job.ok()) return std::move(job).error();
    return (*job)->finish();
  }

  Options options_;
  Environment environment_;
  std::optional<gpu_double::Control> double_;
};

inline auto every_way() {
  return ::testing::Values(Way{io::BackendChoice::uring, -1}, Way{io::BackendChoice::threads, -1},
                           Way{io::BackendChoice::uring, 0}, Way{io::BackendChoice::threads, 1});
}

inline std::string way_name(const ::testing::TestParamInfo<Way>& info) {
  const std::string backend = info.param.backend == io::BackendChoice::uring ? "Uring" : "Threads";
  return backend + (info.param.device < 0 ? "ToHost" : "ToDevice" + std::to_string(info.param.device));
}

}  // namespace infercluster::load
