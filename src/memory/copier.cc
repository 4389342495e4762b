// SPDX-License-Identifier: Apache-2.0
#include "memory/copier.h"

#include <cstring>

namespace infercluster::memory {
namespace {

class HostCopier final : public Copier {
 public:
  Status copy(const Span& from, const Span& to) override {
    IC_ASSERT(from.kind == Kind::host && to.kind == Kind::host && from.bytes == to.bytes);
    std::memcpy(to.host(), from.host(), to.bytes);
    ++statistics_.copies;
    statistics_.bytes += to.bytes;
    return {};
  }
  Status copy_rows(const Span& from, const Span& to, const RowLayout& layout) override {
    for (std::uint64_t row = 0; row < layout.rows; ++row) {
      IC_CHECK(
          copy(from.part(row * layout.from_pitch, layout.row_bytes), to.part(row * layout.to_pitch, layout.row_bytes)));
    }
    return {};
  }
  Status wait_for(const Mark&) override { return {}; }  // the host's work on its memory is done when it lets go of it
  Result<Fence> fence() override { return Fence{0}; }
  Result<bool> passed(Fence) override { return true; }
  Result<std::shared_ptr<const Mark>> mark() override { return std::shared_ptr<const Mark>(); }
  Status drain() override { return {}; }
  [[nodiscard]] CopyStatistics statistics() const override { return statistics_; }

 private:
  CopyStatistics statistics_;
};

}  // namespace

std::unique_ptr<Copier> make_host_copier() {
  return std::make_unique<HostCopier>();
}

}  // namespace infercluster::memory
