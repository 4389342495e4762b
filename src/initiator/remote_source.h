// SPDX-License-Identifier: Apache-2.0
// A range of a remote namespace as a source of the engine: an object of a target is read like a local file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "initiator/host.h"
#include "io/source.h"

namespace infercluster::initiator {

struct RemoteRange {
  std::uint64_t first_block = 0;  // of the namespace
  std::uint64_t bytes = 0;        // of the object
};

// Thread rule: that of Source. `host` may be shared by many.
class RemoteSource final : public io::Source {
 public:
  // Errors: invalid_argument (beyond the namespace's end).
  static Result<std::unique_ptr<RemoteSource>> open(std::shared_ptr<Host> host, const RemoteRange& range);

  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint64_t size() const override { return range_.bytes; }
  // Attempts begin at blocks; the last one may end within a block.
  [[nodiscard]] std::uint32_t alignment() const override { return host_->block_bytes(); }
  std::optional<io::ReadOperation> operation(const io::Attempt&) override { return std::nullopt; }
  void start(const io::Attempt& attempt, const io::AttemptDone& done) override;
  io::ErrorAction on_error(int system_errno) override;
  [[nodiscard]] std::string hint_for(int system_errno) const override;

 private:
  RemoteSource(std::shared_ptr<Host> host, const RemoteRange& range);

  std::shared_ptr<Host> host_;
  RemoteRange range_;
  std::string name_;
};

}  // namespace infercluster::initiator
