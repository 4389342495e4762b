// SPDX-License-Identifier: Apache-2.0
// For tests of this module: makes repositories and holds what was loaded against them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "load/job.h"
#include "load/repository.h"
#include "safetensors/header.h"
#include "testing/temp_dir.h"

namespace infercluster::load {

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
  [[nodiscard]] std::shared_ptr<const Repository> open() const {
    return std::make_shared<const Repository>(open_repository(path()).value());
  }
  [[nodiscard]] const std::string& expected(const std::string& name) const { return expected_.at(name); }
  [[nodiscard]] std::size_t size() const { return expected_.size(); }

  void expect_equal(const LoadedTensor& tensor) const {
    const std::string& bytes = expected(tensor.name);
    ASSERT_EQ(tensor.bytes, bytes.size()) << tensor.name;
    ASSERT_NE(tensor.data, nullptr) << tensor.name;
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data) % safetensors::alignment_of(tensor.dtype), 0U)
        << tensor.name;
    if (tensor.bytes > 0) {
      ASSERT_EQ(std::memcmp(tensor.data, bytes.data(), bytes.size()), 0) << tensor.name;
    }
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

// Every test of a suite that derives from this runs on each backend.
class OnEachBackend : public ::testing::TestWithParam<io::BackendChoice> {
 protected:
  OnEachBackend() { options_.backend.choice = GetParam(); }

  Result<Loaded> load(const std::shared_ptr<const Repository>& repository) {
    auto job = Job::start(repository, options_, environment_);
    if (!job.ok()) return std::move(job).error();
    return (*job)->finish();
  }

  Options options_;
  Environment environment_;
};

inline std::string backend_name(const ::testing::TestParamInfo<io::BackendChoice>& info) {
  return info.param == io::BackendChoice::uring ? "Uring" : "Threads";
}

}  // namespace infercluster::load
