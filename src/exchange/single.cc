// SPDX-License-Identifier: Apache-2.0
#include <mutex>

#include "exchange/cause.h"
#include "exchange/exchange.h"

namespace infercluster::exchange {
namespace {

class Single final : public Exchange {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world() const override { return 1; }

  Result<std::vector<std::string>> gather(std::string_view tag, std::string_view bytes, Deadline deadline) override {
    IC_CHECK(take_part(tag, bytes.size(), kBytesMax, deadline));
    return std::vector<std::string>{std::string(bytes)};
  }

  Result<std::string> decide(std::string_view tag, std::string_view bytes, const Decision& decision,
                             Deadline deadline) override {
    IC_CHECK(take_part(tag, bytes.size(), kBytesMax, deadline));
    auto decided = decision({std::string(bytes)});
    return decided.ok() ? std::move(decided) : Result<std::string>(abort(decided.error(), 0, deadline));
  }

  Status agree(std::string_view tag, std::string_view bytes, Deadline deadline) override {
    return take_part(tag, bytes.size(), kAgreeBytesMax, deadline);
  }

  Status agree_watched(std::string_view tag, std::string_view bytes, const Watch&, Deadline deadline) override {
    return agree(tag, bytes, deadline);
  }

  Error abort(const Error& error, std::uint64_t bytes, Deadline) override {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause_of(0, error, bytes);
    return cause_->error;
  }

  Status check() override {
    const std::lock_guard lock(mutex_);
    return cause_ ? Status(cause_->error) : Status();
  }

  [[nodiscard]] std::optional<Cause> cause() const override {
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  Result<std::unique_ptr<Exchange>> nested(std::uint64_t number) override {
    if (number < next_number_) return number_error(number, next_number_);
    next_number_ = number + 1;
    return make_single();
  }

 private:
  Status take_part(std::string_view tag, std::uint64_t bytes, std::uint64_t bytes_max, Deadline deadline) {
    IC_CHECK(check());
    const Status valid = check_arguments(tag, bytes, bytes_max);
    return valid.ok() ? valid : Status(abort(valid.error(), bytes, deadline));
  }

  mutable std::mutex mutex_;
  std::optional<Cause> cause_;  // guarded by mutex_
  std::uint64_t next_number_ = 0;
};

}  // namespace

std::unique_ptr<Exchange> make_single() {
  return std::make_unique<Single>();
}

}  // namespace infercluster::exchange
